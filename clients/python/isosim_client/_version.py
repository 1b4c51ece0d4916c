__version__ = "1.0.0"
CONTRACT = "1.1"  # of isosim's HTTP contract: what this client sends and reads
