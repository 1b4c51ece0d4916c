"""Calibration jobs: requests, states, and requirements on posted text and labels."""
