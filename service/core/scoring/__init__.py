"""Vectors to scores: calibrations, what they know of their domain, and which of them answers."""
