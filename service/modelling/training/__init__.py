"""Training encoders: `isosim train`, on sentence-transformers' trainer and losses."""
