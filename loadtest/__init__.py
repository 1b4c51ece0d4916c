"""Measures the service, its upper limits and its peers: `python -m loadtest.bench --help`."""
