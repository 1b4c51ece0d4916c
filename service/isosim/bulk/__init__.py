"""Bulk commands: process files of any size with Ray Data, which turns each part of the input into one output file."""
