"""What `isosim doctor` looks at: one file a part of the set-up, one function a question."""
