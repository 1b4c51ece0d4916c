"""Log lines, metrics and traces of a process. They never contain a caller's text or key."""
