"""Bulk commands: process files of any size with Ray Data. The input is split into parts; each gives one output file."""
