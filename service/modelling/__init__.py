"""Code outside of serving that needs torch: encoders, the calibrator, calibrations, training."""
