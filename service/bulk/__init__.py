"""Bulk commands: process files of any size with Ray Data; each part of the input gives one output file."""
