"""The API as a process: its parts, its connections, its life."""
