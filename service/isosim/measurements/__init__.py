"""Measures quality and cost, for `isosim measure` and `isosim evaluate`. Not imported by the running service."""
