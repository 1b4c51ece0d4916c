"""The HTTP contract. A route parses, calls, returns; each group of routes is a package."""
