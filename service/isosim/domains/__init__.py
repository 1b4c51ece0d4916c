"""Domains: their records and files in the store, and the calibrations in memory."""
