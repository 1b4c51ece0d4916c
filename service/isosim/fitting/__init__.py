"""Calibrations: chooses, fits and evaluates a method for a domain's text, and publishes the result as a version."""
