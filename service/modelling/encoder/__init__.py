"""Exports encoders from checkpoints, at full or lower precision, and registers remote ones."""
