"""Bulk work: files of any size in, files out, on Ray Data; every part of the input gives exactly one file."""
