__version__ = "1.0.0"
CONTRACT = "1.0"  # version of isosim's HTTP contract that this client was written for
