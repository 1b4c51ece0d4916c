"""POST /similarity and /embed on a real server."""

from typing import Any

import numpy as np

from tests.processes import Server
from tests.text import sentences

PAIRS = [sentences(2), sentences(4)[2:], ["The pilot repairs the broken clock.", "twice a year"]]


def similarity(server: Server, pairs: list[list[str]], **fields: object) -> dict[str, Any]:
    response = server.client.post("/similarity", json={"pairs": pairs, **fields})
    assert response.status_code == 200, response.text
    answer: dict[str, list[float]] = response.json()
    return answer


def test_a_score_does_not_depend_on_what_shares_its_batch(tiny_server: Server) -> None:
    texts = sentences(200)
    pairs = [[texts[2 * i], texts[2 * i + 1]] for i in range(100)]
    crowd = [[f"{a} {i}", b + " again and again in the rain" * (i % 3)] for i, (a, b) in enumerate(pairs)]
    alone = [similarity(tiny_server, [[a + "!", b + "!"]])["similarity"][0] for a, b in pairs[:20]]
    together = similarity(tiny_server, [[a + "!", b + "!"] for a, b in pairs] + crowd)["similarity"]
    np.testing.assert_allclose(alone, together[:20], atol=1e-5)


def test_a_score_is_the_same_bit_for_bit_on_miss_and_hit(tiny_server: Server) -> None:
    pairs = [["a map never seen before", "the mayor never seen before"]]
    miss = tiny_server.client.post("/similarity", json={"pairs": pairs})
    hit = tiny_server.client.post("/similarity", json={"pairs": pairs})
    assert int(miss.headers["x-compute-tokens"]) > 0
    assert int(hit.headers["x-compute-tokens"]) == 0
    assert miss.content == hit.content


def test_every_score_says_where_it_came_from(tiny_server: Server) -> None:
    response = tiny_server.client.post("/similarity", json={"pairs": PAIRS}, headers={"x-request-id": "mine-1"})
    expected = {"domain": "default", "version": "0", "encoder": response.json()["encoder"]}
    assert {name: response.headers[f"x-isosim-{name}"] for name in expected} == expected
    assert response.headers["x-request-id"] == "mine-1"
    for name in ("total", "tokenization", "queue", "inference"):
        assert float(response.headers[f"x-{name}-time"]) >= 0
    for name in ("default@champion", "default@0"):
        assert similarity(tiny_server, PAIRS, domain=name) == similarity(tiny_server, PAIRS)
    hostile = tiny_server.client.get("/livez", headers={"x-request-id": "a b\tc"})
    assert hostile.headers["x-request-id"] != "a b\tc"


def test_a_limit_counts_characters_whatever_their_bytes(tiny_server: Server) -> None:
    for count, status in ((10_000, 200), (10_001, 422)):
        answer = tiny_server.client.post("/similarity", json={"pairs": [["👍" * count, "a"]]})
        assert answer.status_code == status


def embed(server: Server, inputs: str | list[str] = "the garden gate", **options: object) -> list[list[float]]:
    response = server.client.post("/embed", json={"inputs": inputs, **options})
    assert response.status_code == 200, response.text
    rows: list[list[float]] = response.json()
    return rows


def test_embed_gives_a_list_of_unit_vectors_also_for_one_text(tiny_server: Server) -> None:
    vectors = embed(tiny_server, ["the garden gate", "a boat", "the garden gate"])
    assert np.shape(vectors) == (3, 32)
    assert vectors[0] == vectors[2]
    assert np.shape(embed(tiny_server)) == (1, 32)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_raw_vectors_can_be_cut_and_are_normalized_after_and_the_encoders_own_dimensions_cut_nothing(
    tiny_server: Server,
) -> None:
    whole = np.array(embed(tiny_server, space="raw", normalize=False)[0])
    cut = embed(tiny_server, space="raw", dimensions=8)[0]
    np.testing.assert_allclose(cut, whole[:8] / np.linalg.norm(whole[:8]), atol=1e-6)
    assert embed(tiny_server, dimensions=32) == embed(tiny_server)
    openai = tiny_server.client.post("/v1/embeddings", json={"input": "the garden gate", "dimensions": 32}).json()
    assert openai["data"][0]["embedding"] == embed(tiny_server)[0]


def test_detail_has_the_flags_of_each_pair_of_texts(tiny_server: Server) -> None:
    pairs = [["gate 7", "gate 8"], ["the gate is open", "the gate is not open"], ["gate 7", "gate 7"]]
    answer = tiny_server.client.post("/similarity", json={"pairs": pairs, "detail": True}).json()
    assert answer["detail"]["numbers_differ"] == [True, False, False]
    assert answer["detail"]["negation_differs"] == [False, True, False]


def test_truncation_side_decides_which_end_counts(tiny_server: Server) -> None:
    text = "a wooden boat " * 20 + "the violinist"
    right = embed(tiny_server, text, space="raw")
    assert embed(tiny_server, text, space="raw", truncation_direction="Left") != right
    assert embed(tiny_server, text, space="raw") == right  # the cache keeps them apart
