"""cohere's rerank and embed against a base URL, both generations of them."""

import base64

import cohere
import httpx
import numpy as np
import pytest

from .conftest import TEXTS

QUERY = "Who plays music?"


def percentiles(http: httpx.Client) -> list[float]:
    pairs = [[QUERY, text] for text in TEXTS]
    found: list[float] = http.post("/similarity", json={"pairs": pairs}).json()["percentile"]
    return found


def test_rerank_v2_sorts_by_percentile(url: str, key: str, http: httpx.Client) -> None:
    expected = percentiles(http)
    answer = cohere.ClientV2(base_url=url, api_key=key).rerank(model="isosim", query=QUERY, documents=TEXTS)
    found = {result.index: result.relevance_score for result in answer.results}
    assert found == pytest.approx(dict(enumerate(expected)), abs=1e-9)
    scores = [result.relevance_score for result in answer.results]
    assert scores == sorted(scores, reverse=True)


def test_rerank_v2_gives_the_best_few(url: str, key: str) -> None:
    client = cohere.ClientV2(base_url=url, api_key=key)
    answer = client.rerank(model="isosim/default", query=QUERY, documents=TEXTS, top_n=2, max_tokens_per_doc=100)
    assert len(answer.results) == 2


def test_rerank_v1_returns_documents(url: str, key: str) -> None:
    answer = cohere.Client(base_url=url, api_key=key).rerank(
        model="isosim", query=QUERY, documents=[{"text": text} for text in TEXTS], return_documents=True
    )
    first = answer.results[0]
    assert first.document is not None
    assert first.document.text == TEXTS[first.index]


def test_an_unknown_model_is_not_found(url: str, key: str) -> None:
    with pytest.raises(cohere.NotFoundError):
        cohere.ClientV2(base_url=url, api_key=key).rerank(model="rerank-v3.5", query=QUERY, documents=TEXTS)


def test_embed_v2_gives_the_types_that_are_asked_for(url: str, key: str, vectors: list[list[float]]) -> None:
    client = cohere.ClientV2(base_url=url, api_key=key)
    answer = client.embed(
        model="isosim", input_type="search_query", texts=TEXTS, embedding_types=["float", "base64"], truncate="START"
    )
    np.testing.assert_allclose(answer.embeddings.float_, vectors, atol=1e-7)  # another batch
    packed = [np.frombuffer(base64.b64decode(one), "<f4") for one in answer.embeddings.base64 or ()]
    np.testing.assert_allclose(packed, vectors, atol=1e-7)
    assert answer.meta is not None
    assert answer.meta.billed_units is not None
    assert (answer.meta.billed_units.input_tokens or 0) > 0


def test_embed_v1_merges_its_batches(url: str, key: str, vectors: list[list[float]]) -> None:
    client = cohere.Client(base_url=url, api_key=key)
    texts = TEXTS * 30  # more than the client sends in a request
    plain = client.embed(model="isosim", texts=texts)
    assert plain.texts == texts
    np.testing.assert_allclose(plain.embeddings, vectors * 30, rtol=1e-6)
    typed = client.embed(model="isosim", texts=TEXTS, embedding_types=["float"])
    np.testing.assert_allclose(typed.embeddings.float_, vectors, rtol=1e-6)


def test_a_long_text_is_refused_if_it_must_not_be_cut(url: str, key: str) -> None:
    with pytest.raises(cohere.UnprocessableEntityError):
        cohere.ClientV2(base_url=url, api_key=key).embed(
            model="isosim", input_type="search_query", texts=["word " * 600], truncate="NONE"
        )
