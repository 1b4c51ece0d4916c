"""A version whose labels taught the words of a pair: probabilities with texts, and without."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from isosim.encoders.store import EncoderArtifact
from isosim.scoring.calibration import DomainModel
from isosim.scoring.pair_features import PairMap
from tests.core.scoring.references import MAP, REFERENCE
from tests.processes import Serve, command, wait_until
from tests.stores import domains_of, publish
from tests.text import sentences

TEXT, OTHER, THIRD = sentences(3)
PAIRS = [[f"{TEXT} 7", f"{OTHER} 8"], [f"{TEXT} 7", f"{TEXT} 7"]]
TEXTS = [text for pair in PAIRS for text in pair]


def test_texts_move_the_probability_and_vectors_get_a_notice(
    module_serve: Serve, module_store: Path, tiny: EncoderArtifact
) -> None:
    table = np.array([0.5, 0.6, 0.65])
    curve = replace(MAP, thresholds=table, interval_low=table, interval_high=table)
    learnt = PairMap(np.zeros(4), np.array([0, 0, -12.0, 0]), curve)
    model = DomainModel(REFERENCE, probability=MAP, pair_map=learnt)
    publish(domains_of(module_store), "gates", tiny, model, sentences=300)
    client = module_serve(model_store=module_store, encoder="tiny").client
    texts = client.post("/similarity", json={"pairs": PAIRS, "domain": "gates"}).json()
    vectors = client.post("/embed", json={"inputs": TEXTS, "space": "raw", "normalize": False}).json()
    body = {"vectors": [vectors[:2], vectors[2:]], "domain": "gates"}
    alone = client.post("/similarity", json=body).json()
    threshold = client.get("/domains/gates/threshold?precision=0.8").json()
    assert (threshold["similarity"], threshold["with_texts"]["probability"]) == pytest.approx((0.65, 0.625))
    done = command("threshold", "gates", "--precision", "0.8", "--server", str(client.base_url).rstrip("/"))
    said = done.stdout
    assert "similarity ≥ 0.6500" in said, done.stderr
    assert "from a probability of 0.6250 on" in said
    client.put("/domains/gates/thresholds/same", json={"precision": 0.8}).raise_for_status()
    asked = {"pairs": PAIRS, "domain": "gates", "threshold": "same", "detail": True}
    decided = client.post("/similarity", json=asked).json()
    (saved,) = client.get("/domains/gates/thresholds").json()["thresholds"]
    assert saved["probability"] == decided["threshold"]["probability"] == threshold["with_texts"]["probability"]
    assert decided["match"] == [one >= saved["probability"] for one in texts["probability"]] == [False, True]
    assert [words["numbers_differ"] for words in decided["detail"]["words"]] == [-12, 0]
    brought = client.post("/similarity", json=body | {"threshold": "same"}).json()
    assert brought["threshold"]["probability"] is None
    assert brought["match"] == [one >= saved["similarity"] for one in alone["similarity"]]
    assert texts["notices"] == []
    assert [flags["a"] for flags in texts["flags"]] == [[], []]
    assert alone["notices"] == ["probability_without_texts"]
    assert texts["similarity"] == pytest.approx(alone["similarity"], abs=1e-6)
    assert 0 < texts["probability"][0] < alone["probability"][0] - 0.01
    assert texts["probability"][1] == pytest.approx(alone["probability"][1], abs=1e-4)
    placed = client.post("/percentile", json={"cosines": texts["cosine"], "domain": "gates"}).json()
    assert placed["notices"] == ["probability_without_texts"]
    job = client.post("/matches", json={"a": [*PAIRS[0], THIRD], "domain": "gates"}).json()["job"]
    wait_until(lambda: client.get(f"/matches/{job}").json()["status"] == "succeeded", 120)
    rows = map(json.loads, client.get(f"/matches/{job}/result?similarity=-1").text.splitlines())
    (row,) = [row for row in rows if {row["text_a"], row["text_b"]} == {*PAIRS[0]}]
    assert (row["probability"], row["numbers_differ"]) == (pytest.approx(texts["probability"][0], abs=1e-4), True)
