"""Calibration jobs: posted text and files, records, and the two ways to run them (child processes, RQ)."""
