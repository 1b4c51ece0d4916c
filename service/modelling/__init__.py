"""Offline work in torch: encoders, the calibrator, fitting, export, evaluation."""
