"""langchain-openai and langchain-huggingface."""

import asyncio
import os

import numpy as np
import openai
import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient
from langchain_huggingface import HuggingFaceEndpointEmbeddings
from langchain_openai import OpenAIEmbeddings
from langchain_tests.integration_tests import EmbeddingsIntegrationTests
from langchain_tests.unit_tests import EmbeddingsUnitTests

from .conftest import TEXTS


def openai_embeddings(url: str, key: str, **options: object) -> OpenAIEmbeddings:
    return OpenAIEmbeddings(base_url=f"{url}/v1", api_key=key, model="isosim", **options)


def test_openai_embeddings_sends_texts_when_told_to(url: str, key: str, vectors: list[list[float]]) -> None:
    client = openai_embeddings(url, key, check_embedding_ctx_length=False)
    np.testing.assert_allclose(client.embed_documents(TEXTS), vectors, rtol=1e-6)
    np.testing.assert_allclose(client.embed_query(TEXTS[0]), vectors[0], rtol=1e-6)


def test_token_ids_get_an_error_that_names_the_option_to_set(url: str, key: str) -> None:
    """What LangChain posts by default, without the download of OpenAI's tokenizer that it makes them with."""
    with pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length=False"):
        openai_embeddings(url, key).client.create(model="isosim", input=[[32, 893], [15]])


def test_huggingface_endpoint_embeddings_on_a_client_of_ones_own(
    url: str, key: str, vectors: list[list[float]]
) -> None:
    """Since 1.2 it refuses an address as `model`; its clients can be replaced: the async methods have their own."""
    client = HuggingFaceEndpointEmbeddings()
    client.client = InferenceClient(model=url, token=key)
    client.async_client = AsyncInferenceClient(model=url, token=key)
    np.testing.assert_allclose(client.embed_documents(TEXTS), vectors, rtol=1e-6)
    np.testing.assert_allclose(client.embed_query(TEXTS[0]), vectors[0], rtol=1e-6)
    np.testing.assert_allclose(asyncio.run(client.aembed_query(TEXTS[0])), vectors[0], rtol=1e-6)


class WhitenedEmbeddings:
    """What LangChain's own suites test: the documented options, on calibrated vectors."""

    @property
    def embeddings_class(self) -> type[OpenAIEmbeddings]:
        return OpenAIEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, object]:
        return {
            "base_url": f"{os.environ['ISOSIM_OPEN_URL']}/v1", "api_key": "none", "model": "isosim/whitened",
            "dimensions": 384, "check_embedding_ctx_length": False,
        }  # fmt: skip


class TestUnit(WhitenedEmbeddings, EmbeddingsUnitTests):
    pass


class TestIntegration(WhitenedEmbeddings, EmbeddingsIntegrationTests):
    pass
