"""`/calibrate` and `/inspect`: intake of posted text, files and vectors; calibration jobs and their events."""
