"""LlamaIndex's OpenAI-like and TEI embeddings."""

import numpy as np
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

from .conftest import TEXTS


def test_openai_like(url: str, key: str, vectors: list[list[float]]) -> None:
    client = OpenAILikeEmbedding(model_name="isosim", api_base=f"{url}/v1", api_key=key)
    np.testing.assert_allclose(client.get_text_embedding_batch(TEXTS), vectors, rtol=1e-6)
    np.testing.assert_allclose(client.get_query_embedding(TEXTS[0]), vectors[0], rtol=1e-6)


def test_text_embeddings_inference(url: str, key: str, vectors: list[list[float]]) -> None:
    client = TextEmbeddingsInference(
        model_name="isosim", base_url=url, auth_token=key, text_instruction="", query_instruction=""
    )
    np.testing.assert_allclose(client.get_text_embedding_batch(TEXTS), vectors, rtol=1e-6)
    np.testing.assert_allclose(client.get_query_embedding(TEXTS[0]), vectors[0], rtol=1e-6)
