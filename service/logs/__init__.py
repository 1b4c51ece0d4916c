"""What a process says on stderr while it serves: one line an event, never a text, never a key."""
