"""Exports encoders from checkpoints, at full or lower precision, and registers encoders that run elsewhere."""
