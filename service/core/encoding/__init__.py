"""Texts to vectors: identity of an encoder, caches, batches."""
