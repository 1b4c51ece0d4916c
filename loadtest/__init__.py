"""Measures the service and compares it with upper limits and other servers: `python -m loadtest.bench --help`."""

import isosim  # noqa: F401 - switches off the telemetry of ONNX Runtime, which some modules here import first
