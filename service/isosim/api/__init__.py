"""The HTTP contract, one package per group of routes. A route parses the request, calls a room below, and answers."""
