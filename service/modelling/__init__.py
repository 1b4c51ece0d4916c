"""Code that needs torch and is not used while serving: export of encoders, the calibrator, calibrations, training."""
