"""Bulk commands: files of any size, processed with Ray Data; each part of the input gives exactly one output file."""
