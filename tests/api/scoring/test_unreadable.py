"""Texts without a token that the encoder knows: all have nearly the same vector, and no score of theirs is believed."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from isosim.encoders.store import EncoderArtifact
from isosim.jobs.job import LabelledPair
from tests.processes import Serve, Server
from tests.stores import calibrate
from tests.text import sentences

TEXTS = sentences(400)
UNREADABLE = ["🙂", "🚀🎉", "ᚠᛇᚻ᛫ᛒᛦᚦ", "ᚾᛖᚹ", "\u4e00\u4e8c", "w" * 101, "[MASK]"]
PAIRS = [["🙂", "🚀🎉"], ["ᚠᛇᚻ", "ᚾᛖᚹ"], ["w" * 101, "v" * 102], ["🙂", "🙂"], [TEXTS[0], "🙂"]]


def labels() -> list[LabelledPair]:
    """40 readable pairs, and 7 that the encoder cannot see, which claim the opposite of what their vectors say."""
    matches = [(TEXTS[i], TEXTS[i].replace(".", ""), 1.0) for i in range(20)]
    others = [(TEXTS[i], TEXTS[i + 50], 0.0) for i in range(20)]
    unreadable = [(f"ᚠ{'ᛇ' * n}", "🙂", 0.0) for n in range(5)]
    alike = [(f"{TEXTS[n]} ᚠᛇ", f"{TEXTS[n]} 🙂", 0.0) for n in range(2)]  # different, with equal tokens
    return [LabelledPair(*pair) for pair in (*matches, *others, *unreadable, *alike)]


@pytest.fixture(scope="module")
def server(module_serve: Serve, module_store: Path, tiny: EncoderArtifact) -> Server:
    """`default` without a reference; `clean`, and `mixed`, whose text and labels hold unreadable ones as well."""
    calibrate(module_store, tiny, "clean", texts=TEXTS, labels=labels()[:40])
    calibrate(module_store, tiny, "mixed", texts=[*TEXTS, *UNREADABLE], labels=labels())
    return module_serve(model_store=module_store, encoder="tiny")


def post(server: Server, path: str, **body: Any) -> httpx.Response:
    response = server.client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response


def test_their_pairs_have_percentile_and_probability_0_and_the_flag_on_each_side(server: Server) -> None:
    plain = post(server, "/similarity", pairs=PAIRS[:1]).json()  # of a domain without a reference
    assert plain["flags"] == [{"a": ["unreadable"], "b": ["unreadable"]}]
    assert (plain["percentile"], plain["probability"]) == (None, None)
    for _ in range(2):  # computed, and out of the cache
        answer = post(server, "/similarity", pairs=[*PAIRS, TEXTS[:2]], domain="clean").json()
        assert answer["similarity"][:4] == pytest.approx([1, 1, 1, 1], abs=1e-6)
        assert answer["percentile"][:5] == answer["probability"][:5] == [0.0] * 5
        assert answer["percentile"][5] > 0 < answer["probability"][5]
        flags = [["unreadable" in pair[side] for side in "ab"] for pair in answer["flags"]]
        assert flags == [[True, True]] * 4 + [[False, True], [False, False]]


def test_different_texts_with_equal_unknown_tokens_are_flagged_wherever_pairs_are_scored(server: Server) -> None:
    a, b = "the old boat 🙂 boat.", "the old boat 🚀 boat."
    for _ in range(2):  # computed, and out of the cache
        answer = post(server, "/similarity", pairs=[[a, b], [a, a], [a, TEXTS[0]]], domain="clean").json()
        assert [[*pair.values()] == [["unreadable"]] * 2 for pair in answer["flags"]] == [True, False, False]
        assert (answer["percentile"][0], answer["probability"][0], answer["extrapolated"][0]) == (0, 0, False)
        assert all(value > 0 for value in answer["percentile"][1:])
    ranked = post(server, "/rerank", query=a, texts=[b, TEXTS[0]], domain="clean")
    assert [(rank["index"], rank["score"] > 0) for rank in ranked.json()] == [(1, True), (0, False)]
    pair = post(server, "/score", model="isosim/clean", text_1=a, text_2=b)
    assert pair.headers["x-isosim-flags"] == "unreadable"


def test_they_are_ranked_last_with_0_whatever_the_scores_are(server: Server) -> None:
    texts = ["🚀🎉", TEXTS[1], "ᚾᛖᚹ", TEXTS[0]]
    for body in ({"domain": "clean"}, {"domain": "clean", "raw_scores": True}, {"domain": "default"}):
        response = post(server, "/rerank", query=TEXTS[0], texts=texts, **body)
        ranks = response.json()
        assert [rank["index"] for rank in ranks] == [3, 1, 0, 2]
        assert [rank["score"] for rank in ranks[2:]] == [0.0, 0.0]
        assert response.headers["x-isosim-flags"] == "unreadable"
    ranks = post(server, "/rerank", query="🙂", texts=texts, domain="clean").json()
    assert [(rank["index"], rank["score"]) for rank in ranks] == [(n, 0.0) for n in range(4)]
    answer = post(server, "/v1/rerank", model="isosim/clean", query=TEXTS[0], documents=texts, top_n=3).json()
    found = [(one["index"], one["relevance_score"] > 0) for one in answer["results"]]
    assert found == [(3, True), (1, True), (0, False)]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/similarity", {"inputs": {"source_sentence": TEXTS[0], "sentences": ["{}"]}}),
        ("/embed", {"inputs": ["{}", TEXTS[0]]}),
        ("/v1/embeddings", {"model": "isosim", "input": "{}"}),
        ("/score", {"model": "isosim/clean", "text_1": "{}", "text_2": TEXTS[0]}),
        ("/v2/models/isosim/infer", {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["{}"]}]}),
    ],
)  # fmt: skip
def test_other_routes_answer_as_ever_and_say_it_in_a_header(server: Server, path: str, body: Any) -> None:
    flagged, plain = (post(server, path, **filled(body, text)) for text in ("🙂", TEXTS[3]))
    assert flagged.headers["x-isosim-flags"] == "unreadable"
    assert "x-isosim-flags" not in plain.headers
    assert type(flagged.json()) is type(plain.json())


def filled(body: Any, text: str) -> Any:
    return json.loads(json.dumps(body).replace("{}", text))


def test_they_enter_neither_a_reference_nor_a_probability_and_the_report_counts_them(server: Server) -> None:
    clean, mixed = (
        server.client.get(f"/domains/{domain}/versions/1").json()["report"] for domain in ("clean", "mixed")
    )
    assert (mixed["unreadable"], mixed["labels"]["unreadable"]) == (len(UNREADABLE), 7)
    assert (clean["unreadable"], clean["labels"]["unreadable"]) == (0, 0)
    for key in ("sentences", "text_sha256", "reference", "raw_reference", "before"):
        assert mixed[key] == clean[key], key
    assert mixed["labels"]["pairs"] == clean["labels"]["pairs"] == 40
    pairs = [TEXTS[2 * i : 2 * i + 2] for i in range(50)]
    for column in ("percentile", "probability"):
        one, other = (post(server, "/similarity", pairs=pairs, domain=d).json()[column] for d in ("clean", "mixed"))
        assert one == other
