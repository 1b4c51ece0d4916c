"""Torch, offline: encoders, the calibrator, calibrations, training."""
