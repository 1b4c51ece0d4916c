"""isosim: calibrated sentence similarity as a REST microservice."""

from importlib.metadata import version

__version__ = version("isosim")
