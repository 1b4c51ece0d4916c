"""Calibrations: chooses, fits and measures a method for a domain's text, and publishes a version."""
