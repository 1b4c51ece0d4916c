"""cohere's rerank against a base URL, both generations of it."""

import cohere
import httpx
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
