"""Redis: connections, the shared vector cache, limits that hold for all processes together."""
