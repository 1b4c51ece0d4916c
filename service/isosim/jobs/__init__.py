"""Calibration jobs: posted text and files, and the records that are their queue."""
