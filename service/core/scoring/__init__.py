"""Vectors to scores: calibrations, the models of their domains, and the registry of loaded versions."""
