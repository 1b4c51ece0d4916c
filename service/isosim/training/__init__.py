"""`isosim train`: trains encoders with the trainer and the losses of sentence-transformers."""
