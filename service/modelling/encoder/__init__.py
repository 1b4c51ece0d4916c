"""Checkpoints to exported encoders, at full or lower precision."""
