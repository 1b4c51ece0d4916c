"""Calibration jobs: what is asked, what text has to fulfil."""
