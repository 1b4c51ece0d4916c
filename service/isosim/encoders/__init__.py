"""Encoders: their store, ONNX Runtime, tokenizers, encoders on other servers, and the machine's resources."""
