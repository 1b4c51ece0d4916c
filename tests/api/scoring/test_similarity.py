"""POST /similarity and /embed on a real server."""

import numpy as np
import pytest

from tests.processes import Server
from tests.text import sentences

PAIRS = [sentences(2), sentences(4)[2:], ["The pilot repairs the broken clock.", "twice a year"]]


def similarity(server: Server, pairs: list[list[str]], **fields: object) -> dict[str, list[float]]:
    response = server.client.post("/similarity", json={"pairs": pairs, **fields})
    assert response.status_code == 200, response.text
    answer: dict[str, list[float]] = response.json()
    return answer


def test_every_column_has_one_entry_a_pair(tiny_server: Server) -> None:
    answer = similarity(tiny_server, PAIRS)
    assert [len(answer[name]) for name in ("cosine", "similarity", "flags")] == [3, 3, 3]
    assert answer["domain"] == "default"
    assert answer["version"] == 0
    assert answer["method"] == "identity"


def test_identity_changes_nothing_and_has_no_reference(tiny_server: Server) -> None:
    answer = similarity(tiny_server, PAIRS)
    assert answer["similarity"] == answer["cosine"]
    assert answer["percentile"] is None
    assert answer["extrapolated"] is None
    assert answer["probability"] is None
    assert answer["notices"] == ["no_reference"]


def test_a_sentence_is_like_itself(tiny_server: Server) -> None:
    assert similarity(tiny_server, [["the garden gate", "the garden gate"]])["similarity"] == [
        pytest.approx(1, abs=1e-6)
    ]


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


def test_a_text_that_is_cut_is_flagged(tiny_server: Server) -> None:
    answer = similarity(tiny_server, [["short", "the garden gate " * 30]])
    assert answer["flags"] == [{"a": [], "b": ["truncated"]}]


def test_every_score_says_where_it_came_from(tiny_server: Server) -> None:
    response = tiny_server.client.post("/similarity", json={"pairs": PAIRS}, headers={"x-request-id": "mine-1"})
    assert response.headers["x-isosim-domain"] == "default"
    assert response.headers["x-isosim-version"] == "0"
    assert response.headers["x-isosim-encoder"] == response.json()["encoder"]
    assert response.headers["x-request-id"] == "mine-1"
    for name in ("total", "tokenization", "queue", "inference"):
        assert float(response.headers[f"x-{name}-time"]) >= 0


def test_a_hostile_request_id_is_replaced(tiny_server: Server) -> None:
    response = tiny_server.client.get("/livez", headers={"x-request-id": "a b\tc"})
    assert response.headers["x-request-id"] != "a b\tc"


def test_tei_body_gives_a_bare_list(tiny_server: Server) -> None:
    inputs = {"source_sentence": "the garden gate", "sentences": ["a wooden boat", "the garden gate"]}
    response = tiny_server.client.post("/similarity", json={"inputs": inputs, "options": {"wait": True}})
    scores = response.json()
    assert scores[1] == pytest.approx(1, abs=1e-6)
    assert response.headers["x-isosim-ignored"] == "options"
    pairs = [["the garden gate", "a wooden boat"], ["the garden gate", "the garden gate"]]
    np.testing.assert_allclose(scores, similarity(tiny_server, pairs)["similarity"], atol=1e-5)


def test_embed_is_always_a_list_of_lists(tiny_server: Server) -> None:
    one = tiny_server.client.post("/embed", json={"inputs": "the garden gate"}).json()
    two = tiny_server.client.post("/embed", json={"inputs": ["the garden gate", "a boat", "the garden gate"]}).json()
    assert np.shape(one) == (1, 32)
    assert np.shape(two) == (3, 32)
    assert two[0] == two[2]
    np.testing.assert_allclose(np.linalg.norm(two, axis=1), 1, atol=1e-6)


def test_raw_vectors_can_be_cut_and_are_normalized_after(tiny_server: Server) -> None:
    body = {"inputs": "the garden gate", "space": "raw", "normalize": False}
    whole = np.array(tiny_server.client.post("/embed", json=body).json()[0])
    cut = tiny_server.client.post("/embed", json={**body, "dimensions": 8, "normalize": True}).json()[0]
    np.testing.assert_allclose(cut, whole[:8] / np.linalg.norm(whole[:8]), atol=1e-6)


def test_detail_has_the_flags_of_each_pair_of_texts(tiny_server: Server) -> None:
    pairs = [["gate 7", "gate 8"], ["the gate is open", "the gate is not open"], ["gate 7", "gate 7"]]
    answer = tiny_server.client.post("/similarity", json={"pairs": pairs, "detail": True}).json()
    assert answer["detail"]["numbers_differ"] == [True, False, False]
    assert answer["detail"]["negation_differs"] == [False, True, False]


def test_the_encoders_own_dimensions_cut_nothing(tiny_server: Server) -> None:
    body = {"inputs": "the garden gate"}
    whole = tiny_server.client.post("/embed", json=body).json()
    assert tiny_server.client.post("/embed", json={**body, "dimensions": 32}).json() == whole
    sent = {"input": "the garden gate", "dimensions": 32}
    assert tiny_server.client.post("/v1/embeddings", json=sent).json()["data"][0]["embedding"] == whole[0]


def test_truncation_side_decides_which_end_counts(tiny_server: Server) -> None:
    text = "a wooden boat " * 20 + "the violinist"
    body = {"inputs": text, "space": "raw"}
    right = tiny_server.client.post("/embed", json=body).json()
    left = tiny_server.client.post("/embed", json={**body, "truncation_direction": "Left"}).json()
    assert right != left
    assert tiny_server.client.post("/embed", json=body).json() == right  # the cache keeps them apart


def test_names_of_the_champion_are_one(tiny_server: Server) -> None:
    plain = similarity(tiny_server, PAIRS)
    assert similarity(tiny_server, PAIRS, domain="default@champion") == plain
    assert similarity(tiny_server, PAIRS, domain="default@0") == plain
