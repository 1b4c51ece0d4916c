"""A process's reports on itself: log lines, metrics, traces. They contain no text and no key."""
