"""`/calibrate`: posted text on its way to disk, jobs, their events."""
