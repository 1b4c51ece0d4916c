"""The calibration worker: takes jobs from the store and runs each in a child process."""
