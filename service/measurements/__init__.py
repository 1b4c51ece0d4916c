"""`isosim evaluate` and `isosim measure`: check the service's promises by measurement. Not imported while serving."""
