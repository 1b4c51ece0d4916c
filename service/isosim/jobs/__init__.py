"""Calibration jobs: their records, and the two ways to run them (child processes, RQ)."""
