"""Domains in the model store: versions, aliases, migrations, and versions made ready to serve."""
