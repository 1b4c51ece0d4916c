"""Measurements of what the service promises, each a command: `isosim evaluate` and `isosim measure …`."""
