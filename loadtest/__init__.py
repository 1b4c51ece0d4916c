"""Measures the service and compares it with upper limits and other servers: `python -m loadtest.bench --help`."""
