"""Every error of the contract, through HTTP, from the thing that really causes it: status, type, and what to do."""

import ast
import asyncio
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from isosim.api.errors import ERROR_TYPES
from isosim.api.state import Phase
from isosim.encoders.batching import QUEUED_TEXTS
from isosim.server.app import create_app
from isosim.settings import Settings
from tests.encoders import export
from tests.processes import Serve, Server
from tests.text import sentences

PAIR = {"pairs": [["a boat", "a gate"]]}
TEI = {"source_sentence": "a", "sentences": ["b"]}
JAPANESE = "注文の商品".encode("iso-2022-jp").decode()
FORM, URLENCODED, JSON = "multipart/form-data", "application/x-www-form-urlencoded", "application/json"


def check(response: httpx.Response, status: int, error_type: str, *words: str) -> None:
    """Status, the one error body, and the words a caller needs to mend it."""
    body = response.json()
    assert (response.status_code, body["error_type"]) == (status, error_type), body
    assert body["request_id"] == response.headers["x-request-id"]
    said = "; ".join([body["error"], body.get("remedy", {}).get("text", "")])
    for word in words:
        assert word in said


LONG_JSON = b'{"domain":"d","texts":["' + b"x" * 2_000_000 + b'"]}', JSON
LABELS, ROLLBACK, PLAIN = "/domains/default/labels", "/domains/default/rollback", "text/plain"


# The most common refusals are recorded word by word in tests/answers.
@pytest.mark.parametrize(
    ("path", "sent", "status", "error_type", "words"),
    [
        ("/similarity", {"pairs": [["a", " \n"]]}, 400, "Empty", "pairs[0][1] is empty"),
        ("/similarity", {"inputs": TEI | {"sentences": []}}, 400, "Empty", "`inputs.sentences` cannot be empty"),
        ("/embed", {"inputs": []}, 400, "Empty", "`inputs` cannot be empty"),
        ("/embed", {"inputs": ""}, 400, "Empty", "inputs is empty"),
        ("/similarity", {"pairs": [["a", "b", "c"]]}, 422, "Validation", "pairs[0]: List should have at most 2 items"),
        ("/similarity", PAIR | {"domain": "../etc"}, 422, "Validation", "domain"),
        ("/similarity", PAIR | {"qwxz": 1}, 422, "Validation", "qwxz: unknown field; known are pairs, domain, detail"),
        ("/similarity", {"pairs": [], "vectors": []}, 422, "Validation", "vectors: cannot be combined with the other"),
        ("/similarity", {"inputs": TEI, "domain": "x"}, 422, "Validation", "domain: this route takes no such field"),
        ("/embed", {"inputs": "a", "gallery": 9}, 422, "Validation", "gallery: this route takes no such field"),
        ("/embed", {"inputs": "a " * 100, "truncate": False}, 422, "Validation", "more than 32 tokens"),
        ("/embed", {"inputs": "a", "dimensions": 33, "space": "raw"}, 422, "Validation", "the encoder has 32"),
        ("/embed", {"inputs": "a", "dimensions": 0, "space": "raw"}, 422, "Validation", "dimensions"),
        ("/calibrate", {"domain": "d@1", "texts": ["a"]}, 422, "Validation", "name without a version"),
        ("/calibrate", {"domain": "d", "texts": ["x" * 10_001]}, 422, "Validation", "texts[0]"),
        ("/calibrate", {"domain": "d", "texts": [JAPANESE]}, 422, "Validation", "has a control character"),
        (ROLLBACK, {"qwxz": 1}, 422, "Validation", "qwxz: unknown field; known are revision"),
        (ROLLBACK, {}, 409, "Conflict", "no previous"),
        ("/similarity", PAIR | {"domain": "d@latest"}, 422, "Validation", "name@version or name@previous"),
        ("/similarity", ('{"pairs": [["café", "b"]]}'.encode("latin-1"), JSON), 422, "Validation",
         "the body is not valid JSON: invalid unicode code point at line 1 column "),
        ("/similarity", (b'{"pairs": [["\\ud800", "a"]]}', JSON), 422, "Tokenizer", "surrogate"),
        ("/calibrate", LONG_JSON, 413, "TooLarge", "2000000 bytes; send its entries as application/x-ndjson"),
        (LABELS, LONG_JSON, 413, "TooLarge", "application/x-ndjson"),
        ("/calibrate", (b"a\n", PLAIN), 422, "Validation", "domain"),
        ("/calibrate?domain=d", (b"ok\n\xff\xfe", "text/plain; charset=utf-16"), 422, "Validation", "1 is not utf-16"),
        ("/calibrate?domain=d", (b"ok\n" + b"x" * 10_001, PLAIN), 422, "Validation", "characters: 1 (line 2)"),
        ("/calibrate?domain=d", (b"ok\n" + b"x" * 2_000_000, PLAIN), 422, "Validation", "line 2 is longer"),
        ("/similarity", (b"a", "text/csv"), 415, "UnsupportedMedia",
         "content-type 'text/csv' is not read here; this route reads JSON, content-type: application/json"),
        ("/similarity", (b"a", ""), 415, "UnsupportedMedia", "the request has no content-type; this route reads JSON"),
        ("/percentile", (b"a=b", FORM), 415, "UnsupportedMedia", "'multipart/form-data' (curl -F sends it) is a form"),
        ("/percentile", (b"a=b", URLENCODED), 415, "UnsupportedMedia", "(curl -d alone sends it) is a form"),
        *((path, (b"--x", kind), 415, "UnsupportedMedia", f"application/octet-stream' '…{path}'")
          for kind in (FORM, URLENCODED) for path in ("/calibrate?domain=d", "/inspect")),
        ("GET /domains/nowhere/versions/1", {}, 404, "NotFound", "no domain 'nowhere'; GET /domains lists the domains"),
        ("GET /domains/nowhere@1/threshold?fmr=0.01", {}, 404, "NotFound", "no domain 'nowhere'"),
        ("GET /calibrate/x", {}, 404, "NotFound", ""),
        ("GET /domains/default/versions/0", {}, 422, "Validation", "version in the path: Input should be greater than"),
        ("GET /domains/default/threshold?fmr=1%", {}, 422, "Validation", "fmr in the query: Input should be a valid"),
        ("PUT /calibrate", {}, 405, "MethodNotAllowed", "PUT /calibrate"),
    ],
    ids=count(),
)  # fmt: skip
def test_a_request_is_refused(
    tiny_server: Server, path: str, sent: Any, status: int, error_type: str, words: str
) -> None:
    method, _, path = path.rpartition(" ")
    given: dict[str, Any] = {"json": sent} if method == "" else {}
    if isinstance(sent, tuple):
        given = {"content": sent[0], "headers": {"content-type": sent[1]} if sent[1] else {}}
    check(tiny_server.client.request(method or "POST", path, **given), status, error_type, words)


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/embeddings"), ("POST", "/chat/completions"), ("GET", "/models"), ("GET", "/models/isosim")],
)
def test_an_openai_client_without_v1_in_its_address_is_told(tiny_server: Server, method: str, path: str) -> None:
    """Such a client shows `error` only if it has OpenAI's shape."""
    answer = tiny_server.client.request(method, path, json={"model": "isosim", "input": "a"})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (404, "not_found_error", "notfound")
    assert f"no route {method} {path}; base_url must end with /v1" in error["message"]


def test_a_405_names_the_methods_that_are_allowed_and_a_slash_at_the_end_is_passed_over(tiny_server: Server) -> None:
    client = tiny_server.client
    allowed = {"/similarity": "POST", "/calibrate": "GET, POST", "/v2/models/isosim/infer": "POST"}
    assert {path: client.put(path).headers["allow"] for path in allowed} == allowed
    assert client.post("/similarity/", json=PAIR).json() == client.post("/similarity", json=PAIR).json()


def test_a_body_without_a_length_is_refused_beyond_the_limit(tiny_server: Server) -> None:
    chunks = (b" " * 100_000 for _ in range(21))
    check(tiny_server.client.post("/similarity", content=chunks, headers={"content-type": JSON}), 413, "TooLarge")


def test_an_encoder_that_fails_is_424(serve: Serve, tiny_checkpoint: Path, tmp_path: Path) -> None:
    import torch
    from transformers import BertModel

    own_checkpoint = shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint")
    model = BertModel.from_pretrained(own_checkpoint)
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[4] = float("nan")  # [MASK]
    model.save_pretrained(own_checkpoint)
    server = serve(model_store=export(tmp_path / "s", "tiny", str(own_checkpoint), max_length=32), encoder="tiny")
    check(server.client.post("/similarity", json={"pairs": [["[MASK]", "a"]]}), 424, "Backend", "NaN")
    assert server.client.post("/similarity", json=PAIR).status_code == 200


def test_what_does_not_fit_is_refused_whole_with_429(serve: Serve, store: Path) -> None:
    """Eight requests of 1,000 texts at once: twice what the queue takes."""
    server = serve(model_store=store, encoder="tiny", max_batch_tokens=1, max_wait=600)
    requests = [[f"{number} {text}" for text in sentences(1000)] for number in range(8)]
    with ThreadPoolExecutor(len(requests)) as pool:
        answers = list(pool.map(lambda texts: server.client.post("/embed", json={"inputs": texts}), requests))
    refused = [number for number, answer in enumerate(answers) if answer.status_code == 429]
    assert {answer.status_code for answer in answers} == {200, 429}
    check(answers[refused[0]], 429, "Overloaded", str(QUEUED_TEXTS))
    assert int(answers[refused[0]].headers["retry-after"]) >= 1
    again = server.client.post("/embed", json={"inputs": requests[refused[0]]})
    assert again.status_code == 200
    assert int(again.headers["x-compute-tokens"]) > 0  # the refused request had computed none of them


def test_a_server_that_cannot_calibrate_is_503_with_the_remedy(
    serve: Serve, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    server = serve(model_store=store, encoder="tiny")
    response = server.client.post("/calibrate", json={"domain": "d", "texts": sentences(300)})
    check(response, 503, "Unavailable", "ISOSIM_LOCAL_WORKER=false")
    assert not [*store.glob("jobs/*"), *store.glob("open/*"), *store.glob("input/*")]


async def ask(app: FastAPI, *paths: str) -> list[httpx.Response]:
    """One GET of each path while the app is ready and one while it is not, without a socket."""
    answers = []
    async with app.router.lifespan_context(app) as state:

        async def with_state(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "state": dict(state or {})}, receive, send)

        transport = httpx.ASGITransport(with_state, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            for phase in (Phase.SERVING, Phase.STOPPING):
                (state or {})["service"].phase = phase
                answers += [await client.get(path) for path in paths]
    return answers


def test_a_server_that_is_not_ready_is_503_and_what_is_not_expected_a_500_without_its_insides(store: Path) -> None:
    app = create_app(Settings(model_store=store, encoder="tiny"))

    @app.get("/broken")
    def broken() -> None:
        raise RuntimeError("a secret")

    *ready, failed, probe, listing, _ = asyncio.run(ask(app, "/readyz", "/domains", "/broken"))
    assert [answer.status_code for answer in ready] == [200, 200]
    for draining in (probe, listing):
        check(draining, 503, "Unhealthy", "stopping")
        assert draining.headers["retry-after"]
    check(failed, 500, "Internal")
    assert "secret" not in failed.text


def test_every_error_type_has_a_test() -> None:
    """Here, or for keys in tests/security."""
    files = [Path(__file__), *(Path(__file__).parents[1] / "security").glob("test_scopes.py")]
    trees = [ast.parse(file.read_text()) for file in files]
    named = {node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert [error_type for error_type in ERROR_TYPES if error_type not in named] == []
