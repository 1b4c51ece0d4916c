"""Routes that other services defined: OpenAI, text-embeddings-inference, Cohere, vLLM, Open Inference Protocol."""
