"""Messages of refusals: where the fault is, what is wanted, and no word of what was sent."""

from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter

from isosim.api.calibration.schemas import LabelsRequest
from isosim.api.compatible.schemas import RerankRequest
from isosim.api.scoring.schemas import EmbedRequest, SimilarityRequest
from isosim.api.validation import parse_json
from isosim.errors import InvalidInput
from tests.processes import Server

PAIR = [["a boat", "a gate"]]
TEI = {"source_sentence": "a", "sentences": ["b"]}
SIMILARITY: TypeAdapter[Any] = TypeAdapter(SimilarityRequest)
EMBED, RERANK, LABELS = TypeAdapter(EmbedRequest), TypeAdapter(RerankRequest), TypeAdapter(LabelsRequest)


@pytest.mark.parametrize(
    ("adapter", "body", "message"),
    [
        (SIMILARITY, "", "the body is not valid JSON: EOF while parsing a value at line 1 column 0"),
        (SIMILARITY, "[]", "the body: Input should be an object"),
        (SIMILARITY, {}, "pairs: Field required"),
        (SIMILARITY, {"pairs": [*PAIR, ["a"]]}, "pairs[1]: List should have at least 2 items after validation, not 1"),
        (SIMILARITY, {"pairs": ["ab"]}, "pairs[0]: Input should be a valid array"),
        (SIMILARITY, {"pairs": [["a", 7], 8]}, "pairs[0][1]: Input should be a valid string"),
        (SIMILARITY, {"pairs": PAIR, "detail": 1, "domain": 2, "threshold": 3}, "domain: Input should be a valid "
         "string; detail: Input should be a valid boolean; threshold: Input should be a valid string"),
        (SIMILARITY, {"inputs": TEI | {"sentences": ["b", 3]}}, "inputs.sentences[1]: Input should be a valid string"),
        (SIMILARITY, {"inputs": TEI, "parameters": {"truncation_direction": "up"}},
         "parameters.truncation_direction: Input should be 'Right' or 'Left'"),
        (EMBED, {"inputs": 3}, "inputs: Input should be a valid string, or a valid array"),
        (EMBED, {"inputs": ["a", 3]}, "inputs[1]: Input should be a valid string"),
        (EMBED, {"inputs": "a", "dimensions": 1.5}, "dimensions: Input should be a valid integer"),
        (RERANK, {"query": "a", "documents": ["a", {}]}, "documents[1].text: Field required"),
        (LABELS, {"labels": [["a", "b", 1], ["a", "b"]]}, "labels[1][2]: Field required"),
        (LABELS, {"labels": [{"a": "x", "b": "y"}]}, "labels[0].label: Field required"),
        (LABELS, {"labels": [{"a": "x", "b": "y", "label": 1, "k" * 200: 1}]},
         f"labels[0].{'k' * 80}: Extra inputs are not permitted"),
        (LABELS, {"labels": [["a", "b", 1, 0]]}, "labels[0][3]: Input should be greater than 0"),
    ],
)  # fmt: skip
def test_a_fault_has_its_place_as_a_person_writes_it(adapter: TypeAdapter[Any], body: Any, message: str) -> None:
    content = body.encode() if isinstance(body, str) else httpx.Request("POST", "http://x", json=body).content
    with pytest.raises(InvalidInput) as refused:
        parse_json(adapter, content)
    assert str(refused.value) == message


PRIVATE = "a sentence that only its author may read"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/similarity", {"pairs": [[PRIVATE, PRIVATE, PRIVATE]]}),
        ("/similarity", {"pairs": PRIVATE, "detail": PRIVATE, "domain": 3}),
        ("/similarity", {"pairs": [{PRIVATE: PRIVATE}]}),
        ("/similarity", {"inputs": {"source_sentence": PRIVATE, "sentences": PRIVATE}}),
        ("/similarity", {"inputs": PRIVATE, "parameters": {"truncation_direction": PRIVATE}}),
        ("/percentile", {"cosines": [PRIVATE], "metric": PRIVATE}),
        ("/embed", {"inputs": {PRIVATE: PRIVATE}, "dimensions": PRIVATE}),
        ("/rerank", {"query": [PRIVATE], "documents": [{"text": [PRIVATE]}]}),
        ("/v1/embeddings", {"input": [[PRIVATE]], "encoding_format": PRIVATE}),
        ("/v2/models/isosim/infer", {"inputs": [{"name": "text", "shape": [PRIVATE], "data": PRIVATE}]}),
        ("/calibrate", {"domain": 3, "texts": [PRIVATE, [PRIVATE]], "method": PRIVATE}),
        ("/domains/default/labels", {"labels": [[PRIVATE, [PRIVATE], PRIVATE]]}),
        ("/domains/default/rollback", {"revision": PRIVATE, "without": PRIVATE}),
    ],
)
def test_no_message_repeats_a_text_that_was_sent(tiny_server: Server, path: str, body: Any) -> None:
    response = tiny_server.client.post(path, json=body)
    assert response.status_code in (400, 422)
    assert PRIVATE not in response.text
