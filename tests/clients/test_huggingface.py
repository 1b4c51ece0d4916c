"""huggingface_hub's InferenceClient, as people point it at text-embeddings-inference."""

import numpy as np
import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient

from .conftest import TEXTS


@pytest.mark.parametrize("path", ["", "/embed"])
def test_feature_extraction_gives_the_vectors_of_embed(
    url: str, key: str, vectors: list[list[float]], path: str
) -> None:
    client = InferenceClient(model=url + path, token=key)
    np.testing.assert_allclose(client.feature_extraction(TEXTS[0]), [vectors[0]], rtol=1e-6)


def test_feature_extraction_takes_teis_options(url: str, key: str) -> None:
    client = InferenceClient(model=f"{url}/embed", token=key)
    found = client.feature_extraction(TEXTS[0], normalize=True, truncate=True, truncation_direction="left")
    assert np.linalg.norm(found) == pytest.approx(1, abs=1e-5)


def test_sentence_similarity_gives_the_calibrated_scores(url: str, key: str, similarities: list[float]) -> None:
    client = InferenceClient(model=f"{url}/similarity", token=key)
    assert client.sentence_similarity(TEXTS[0], other_sentences=TEXTS[1:]) == pytest.approx(similarities, abs=1e-6)


async def ask(url: str, key: str) -> np.ndarray:
    return await AsyncInferenceClient(model=url, token=key).feature_extraction(TEXTS[0])


def test_the_async_client_works_too(url: str, key: str, vectors: list[list[float]]) -> None:
    import asyncio

    np.testing.assert_allclose(asyncio.run(ask(url, key)), [vectors[0]], rtol=1e-6)
