"""Vectors to scores: calibrations, models fitted to a domain's text and labels, and the registry of loaded versions."""
