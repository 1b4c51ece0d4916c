"""Prompts that an encoder's checkpoint names: put before a text where a request names one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isosim.encoders.store import EncoderArtifact
from isosim.store.artifacts import read_manifest, sealed_by, write_json
from tests.processes import Serve, Server

TEXTS = ["a wooden boat", "the garden gate"]
INPUTS = {"source_sentence": "a", "sentences": ["b"]}
PROMPTS = {"query": "the mayor sells ", "bare": ""}


@pytest.fixture(scope="module")
def server(module_serve: Serve, module_store: Path, tiny: EncoderArtifact) -> Server:
    """The tiny encoder, as if its checkpoint had named two prompts."""
    place = module_store / "encoders" / "tiny" / tiny.digest
    manifest = {**read_manifest(place), "prompts": PROMPTS}
    write_json(place / "manifest.json", {**manifest, "seal": sealed_by(manifest)})
    return module_serve(model_store=module_store, encoder="tiny")


def post(server: Server, path: str, **body: Any) -> Any:
    response = server.client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def test_a_named_prompt_stands_before_each_text(server: Server) -> None:
    named = post(server, "/embed", inputs=TEXTS, prompt_name="query")
    written = post(server, "/embed", inputs=[PROMPTS["query"] + text for text in TEXTS])
    assert named == written
    plain = post(server, "/embed", inputs=TEXTS)
    assert np.abs(np.array(named) - plain).max() > 0.01
    assert post(server, "/embed", inputs=TEXTS, prompt_name="bare") == plain  # this encoder's own prompt is empty


def test_both_sides_of_a_similarity_get_it_and_its_tokens_are_shown(server: Server) -> None:
    inputs = {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}
    before = {"source_sentence": PROMPTS["query"] + TEXTS[0], "sentences": [PROMPTS["query"] + TEXTS[1]]}
    named = post(server, "/similarity", inputs=inputs, parameters={"prompt_name": "query"})
    assert named == post(server, "/similarity", inputs=before) != post(server, "/similarity", inputs=inputs)
    tokens = post(server, "/tokenize", inputs=TEXTS[0], prompt_name="query")
    assert tokens == post(server, "/tokenize", inputs=PROMPTS["query"] + TEXTS[0])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/embed", {"inputs": "a", "prompt_name": "Query"}),
        ("/tokenize", {"inputs": "a", "prompt_name": "Query"}),
        ("/similarity", {"inputs": INPUTS, "parameters": {"prompt_name": "Query"}}),
    ],
)  # fmt: skip
def test_an_unknown_prompt_is_refused_with_the_known_ones(server: Server, path: str, body: dict[str, Any]) -> None:
    response = server.client.post(path, json=body)
    expected = "prompt_name: there is no prompt 'Query'; the encoder has bare, query"
    assert (response.status_code, response.json()["error"]) == (422, expected)
