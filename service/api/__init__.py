"""The HTTP contract. A route parses, calls, returns; its group is a package of its own."""
