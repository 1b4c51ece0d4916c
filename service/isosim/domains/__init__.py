"""Domains in the model store: versions, aliases and migrations. Loads versions for serving."""
