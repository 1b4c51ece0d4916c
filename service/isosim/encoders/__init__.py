"""Encoders: texts to vectors, caches, batches; ONNX Runtime, tokenizers, other servers; their place in the store."""
