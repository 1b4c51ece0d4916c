"""Routes compatible with other services: OpenAI, text-embeddings-inference, Cohere, vLLM, Open Inference Protocol."""
