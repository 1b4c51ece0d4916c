"""Writes files that appear as a whole or not at all, in a folder or in object storage."""
