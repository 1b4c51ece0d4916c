"""The HTTP contract: a route parses, calls, returns."""
