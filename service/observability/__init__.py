"""What a process reports of itself: log lines, metrics, traces. Never a text, never a key."""
