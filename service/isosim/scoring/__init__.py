"""Computes scores from vectors: calibrations, models fitted to a domain's text and labels, the registry of versions."""
