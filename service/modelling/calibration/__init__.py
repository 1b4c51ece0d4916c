"""A calibration from posted text to a version: choose, fit, judge, publish."""
