"""Encoders: the store of exports, ONNX Runtime, tokenizer, and what the machine offers them."""
