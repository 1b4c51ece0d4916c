"""Messages of refusals, through HTTP: where the fault is, and what is wanted."""

import re
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter

from isosim.api.calibration.schemas import LabelsRequest
from isosim.api.compatible.schemas import RerankRequest
from isosim.api.scoring.schemas import EmbedRequest, SimilarityRequest
from isosim.api.validation import parse_json
from isosim.errors import InvalidInput
from tests.api.conftest import NARROW, OPEN
from tests.processes import Server
from tests.security.conftest import bearer

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
        (
            SIMILARITY,
            {"pairs": PAIR, "detail": 1, "domain": 2, "threshold": 3},
            "domain: Input should be a valid string; detail: Input should be a valid boolean; "
            "threshold: Input should be a valid string",
        ),
        (
            SIMILARITY,
            {"inputs": {**TEI, "sentences": ["b", 3]}},
            "inputs.sentences[1]: Input should be a valid string",
        ),
        (
            SIMILARITY,
            {"inputs": TEI, "parameters": {"truncation_direction": "up"}},
            "parameters.truncation_direction: Input should be 'Right' or 'Left'",
        ),
        (EMBED, {"inputs": 3}, "inputs: Input should be a valid string, or a valid array"),
        (EMBED, {"inputs": ["a", 3]}, "inputs[1]: Input should be a valid string"),
        (EMBED, {"inputs": "a", "dimensions": 1.5}, "dimensions: Input should be a valid integer"),
        (RERANK, {"query": "a", "documents": ["a", {}]}, "documents[1].text: Field required"),
        (LABELS, {"labels": [["a", "b", 1], ["a", "b"]]}, "labels[1][2]: Field required"),
        (LABELS, {"labels": [{"a": "x", "b": "y"}]}, "labels[0].label: Field required"),
        (
            LABELS,
            {"labels": [{"a": "x", "b": "y", "label": 1, "k" * 200: 1}]},
            f"labels[0].{'k' * 80}: Extra inputs are not permitted",
        ),
        (LABELS, {"labels": [["a", "b", 1, 0]]}, "labels[0][3]: Input should be greater than 0"),
    ],
)
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


def said(response: httpx.Response) -> str:
    body = response.json()
    if not isinstance(body["error"], str):
        return str(body["error"]["message"])
    return "; ".join([body["error"], *([body["remedy"]["text"]] if "remedy" in body else [])])


def refused_with(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, said(response)


def test_errors_under_v1_name_the_field_as_a_path(tiny_server: Server) -> None:
    response = tiny_server.client.post("/v1/score", json={"model": "isosim", "text_1": "a", "text_2": ["b", 7]})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "text_2.1"
    assert error["message"] == "text_2[1]: Input should be a valid string"


FORM, URLENCODED = "multipart/form-data", "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    ("kind", "begins"),
    [
        (FORM, "content-type 'multipart/form-data' (curl -F sends it) is a form"),
        (URLENCODED, "content-type 'application/x-www-form-urlencoded' (curl -d alone sends it) is a form"),
        (None, "the request has no content-type"),
        ("text/csv", "content-type 'text/csv' is not read here"),
    ],
)
def test_a_body_of_another_type_is_told_the_right_one(tiny_server: Server, kind: str | None, begins: str) -> None:
    headers = {} if kind is None else {"content-type": kind}
    for method, path in (("POST", "/percentile"), ("PUT", "/domains/default/champion")):
        answer = tiny_server.client.request(method, path, content=b"pairs=a", headers=headers)
        expected = f"{begins}; this route reads JSON, content-type: application/json"
        assert refused_with(answer) == (415, expected)
    answer = tiny_server.client.post("/domains/default/labels", content=b"a", headers=headers)
    assert "isosim label FILE" in answer.text


@pytest.mark.parametrize("path", ["/calibrate?domain=d", "/inspect"])
@pytest.mark.parametrize("kind", [FORM, URLENCODED])
def test_a_posted_form_is_told_how_to_post_the_file_itself(tiny_server: Server, path: str, kind: str) -> None:
    answer = tiny_server.client.post(path, content=b"--x", headers={"content-type": kind})
    status, text = refused_with(answer)
    assert status == 415
    assert kind in text
    assert "--data-binary @" in text
    assert f"'…{path}'" in text


@pytest.mark.parametrize("path", ["/", "/console", "/docs", "/metrics", "/livez", "/readyz"])
def test_head_is_answered_like_get_without_a_body(tiny_server: Server, path: str) -> None:
    """Uptime monitors ask so."""
    head, get = tiny_server.client.head(path), tiny_server.client.get(path)
    assert head.status_code == get.status_code < 400
    assert head.content == b""
    assert head.headers.get("content-type") == get.headers.get("content-type")


def test_a_version_of_a_domain_that_is_not_there_is_an_unknown_domain(stocked: Server) -> None:
    for method, path in (
        ("GET", "/domains/ticket"), ("GET", "/domains/ticket/versions/1"), ("DELETE", "/domains/ticket/versions/1"),
        ("GET", "/domains/ticket@1/threshold?fmr=0.01"),
    ):  # fmt: skip
        status, text = refused_with(stocked.client.request(method, path, headers=bearer(OPEN)))
        expected = "no domain 'ticket'; GET /domains lists the domains"
        assert (status, text) == (404, expected), path
    answer = stocked.client.get("/domains/tickets/versions/9", headers=bearer(OPEN))
    assert refused_with(answer)[0] == 404
    assert "it has" in said(answer)


def test_a_precision_beyond_the_labels_names_the_field_once(stocked: Server) -> None:
    answer = stocked.client.get("/domains/tickets/threshold?precision=0.99", headers=bearer(OPEN))
    assert answer.status_code == 422
    assert said(answer).startswith("precision is 0.99; it must be between 0.50 and 0.90, the highest that the ")


def test_an_unknown_path_is_told_where_the_routes_are(tiny_server: Server) -> None:
    assert said(tiny_server.client.get("/qwxz")) == "no route GET /qwxz; /docs lists the routes"
    slashed = tiny_server.client.post("/similarity/", json={"pairs": PAIR})
    assert slashed.json() == tiny_server.client.post("/similarity", json={"pairs": PAIR}).json()


def test_faults_of_queries_and_paths_say_where_they_are(tiny_server: Server) -> None:
    answer = tiny_server.client.get("/domains/default/threshold", params={"fmr": "1%"})
    expected = "fmr in the query: Input should be a valid number, unable to parse string as a number"
    assert refused_with(answer) == (422, expected)
    answer = tiny_server.client.get("/domains/default/versions/0")
    assert said(answer) == "version in the path: Input should be greater than or equal to 1"


def test_json_that_is_not_utf_8_is_told_so(tiny_server: Server) -> None:
    content = '{"pairs": [["café", "b"]]}'.encode("latin-1")
    headers = {"content-type": "application/json"}
    status, text = refused_with(tiny_server.client.post("/similarity", content=content, headers=headers))
    assert status == 422
    assert re.fullmatch(r"the body is not valid JSON: invalid unicode code point at line 1 column \d+", text)


def test_a_version_that_has_no_such_name_is_told_what_the_name_alone_is(stocked: Server) -> None:
    answer = stocked.client.post("/similarity", json={"pairs": PAIR, "domain": "tickets@latest"}, headers=bearer(OPEN))
    assert "name (its champion), name@version or name@previous" in refused_with(answer)[1]


def test_an_unknown_key_is_told_who_makes_one(stocked: Server) -> None:
    status, text = refused_with(stocked.client.get("/domains", headers=bearer("isk_guess")))
    assert status == 401
    assert text.startswith("the API key is not known; ask the server's operator for one: isosim keys new")


def test_a_missing_scope_is_told_how_a_key_comes_to_have_it(stocked: Server) -> None:
    body = {"labels": [["a", "b", 1]]}
    status, text = refused_with(stocked.client.post("/domains/invoices/labels", json=body, headers=bearer(NARROW)))
    assert status == 403
    assert "isosim keys new --scopes calibrate" in text
