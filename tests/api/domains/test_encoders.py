"""Two servers with an encoder each share a store: each answers with the champion of its own encoder."""

import shutil
from pathlib import Path

import pytest

from isosim.encoders.store import EncoderStore
from tests.encoders import export, save_bert
from tests.processes import Serve
from tests.stores import calibrate
from tests.text import sentences

TEXTS = sentences(300)
BODY = {"pairs": [TEXTS[:2]], "domain": "tickets", "threshold": "duplicates"}
CALIBRATION = ("/calibrate", {"domain": "tickets", "texts": TEXTS, "method": "identity"})


@pytest.fixture(scope="module")
def other_checkpoint(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another BERT: other weights, three layers, 48 dimensions, the same tokenizer."""
    folder = tmp_path_factory.mktemp("other")
    shutil.copy(tiny_checkpoint / "tokenizer.json", folder)
    save_bert(folder, seed=1, dim=48, layers=3)
    return folder


def test_each_server_answers_with_its_own_encoders_champion(
    module_store: Path, other_checkpoint: Path, serve: Serve
) -> None:
    export(module_store, "other", str(other_checkpoint), max_length=32, prompt="say: ")
    encoders = [EncoderStore.at(module_store).find(name) for name in ("tiny", "other")]
    assert [calibrate(module_store, encoder, "tickets", "identity") for encoder in encoders] == [1, 2]
    calibrate(module_store, encoders[0], "single", "identity")
    old, new = (serve(model_store=module_store, encoder=encoder.id).client for encoder in encoders)
    new.put("/domains/tickets/thresholds/duplicates", json={"fmr": 0.05}).raise_for_status()
    thresholds = []
    for client, encoder, version in ((old, encoders[0], 1), (new, encoders[1], 2)):
        answer = client.post("/similarity", json=BODY).raise_for_status()
        assert (answer.headers["x-isosim-encoder"], answer.json()["version"]) == (encoder.digest, version)
        thresholds.append(answer.json()["threshold"]["similarity"])
        state = client.get("/domains/tickets").json()
        assert (state["champion"], [one["servable"] for one in state["versions"]]) == (
            version,
            [version == 1, version == 2],
        )
        assert client.delete("/domains/tickets/versions/1").status_code == 409
        assert client.post("/similarity", json=BODY | {"domain": f"tickets@{3 - version}"}).status_code == 409
        embedded = client.post("/embed", json={"inputs": "a boat", "domain": "tickets"}).json()
        assert len(embedded[0]) == encoder.spec.dim
    assert thresholds[0] != thresholds[1]
    refused = new.post("/similarity", json={"pairs": [TEXTS[:2]], "domain": "single"})
    assert (refused.status_code, "encoder_mismatch" in refused.json()["error"]) == (409, True)
    route, body = CALIBRATION
    assert new.post(route, json=body | {"encoder": encoders[0].digest}).status_code == 409
    assert new.post(route, json=body | {"encoder": encoders[1].digest}).status_code == 202
