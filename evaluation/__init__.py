"""Measurements of what the service promises, on fixed corpora: `python -m evaluation`. Not part of the product."""

import isosim  # noqa: F401 - switches off the telemetry of ONNX Runtime, which some modules here import first
