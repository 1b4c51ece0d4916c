"""Redis: connections, the shared vector cache, and limits that apply to all processes together."""
