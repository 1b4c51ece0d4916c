"""Measurements of what the service promises: `isosim evaluate` and `isosim measure`. Nothing imports this package."""
