"""A version whose labels taught the words of a pair: probabilities with texts, and without."""

from pathlib import Path

import numpy as np
import pytest

from isosim.encoders.store import EncoderArtifact
from isosim.scoring.calibration import DomainModel
from isosim.scoring.pair_features import PairMap
from tests.core.scoring.references import MAP, REFERENCE
from tests.processes import Serve
from tests.stores import domains_of, publish

PAIRS = [["the gate 7", "the gate 8"], ["the gate 7", "the gate 7"]]
TEXTS = [text for pair in PAIRS for text in pair]


def test_texts_move_the_probability_and_vectors_get_a_notice(
    module_serve: Serve, module_store: Path, tiny: EncoderArtifact
) -> None:
    learnt = PairMap(np.zeros(4), np.array([0, 0, -9.0, 0]), MAP.knots, MAP.logits, MAP.clip)
    model = DomainModel(REFERENCE, probability=MAP, pair_map=learnt)
    publish(domains_of(module_store), "gates", tiny, model, sentences=300)
    client = module_serve(model_store=module_store, encoder="tiny").client
    texts = client.post("/similarity", json={"pairs": PAIRS, "domain": "gates"}).json()
    vectors = client.post("/embed", json={"inputs": TEXTS, "space": "raw", "normalize": False}).json()
    body = {"vectors": [vectors[:2], vectors[2:]], "domain": "gates"}
    alone = client.post("/similarity", json=body).json()
    assert texts["notices"] == []
    assert alone["notices"] == ["probability_without_texts"]
    assert texts["similarity"] == pytest.approx(alone["similarity"], abs=1e-6)
    assert texts["probability"][0] < alone["probability"][0] - 0.1
    assert texts["probability"][1] == pytest.approx(alone["probability"][1], abs=1e-4)
    placed = client.post("/percentile", json={"cosines": texts["cosine"], "domain": "gates"}).json()
    assert placed["notices"] == ["probability_without_texts"]
