"""Code that needs torch and is not used while serving.

It exports encoders and the calibrator for the server, fits calibrations, and trains encoders.
"""
