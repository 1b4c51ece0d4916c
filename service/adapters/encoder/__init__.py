"""Encoders: the store of exports, ONNX Runtime, tokenizers, encoders on other servers, and the machine's resources."""
