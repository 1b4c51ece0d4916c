"""`isosim evaluate` and `isosim measure`: measure what the service promises. Serving does not import this package."""
