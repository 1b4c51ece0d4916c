"""Measures the service, its limits and its peers side by side. `python -m loadtest.bench --help`."""
