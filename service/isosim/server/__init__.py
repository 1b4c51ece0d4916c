"""The API as a process: composition of its parts, HTTP connections, start and shutdown."""
