"""Every error of the contract, through HTTP, from the thing that really causes it."""

import ast
import asyncio
import hashlib
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
from tests.processes import Serve, Server, wait_until
from tests.text import sentences

PAIR = {"pairs": [["a boat", "a gate"]]}
JSON = {"content-type": "application/json"}


def check(response: httpx.Response, status: int, error_type: str, *words: str) -> None:
    """Status, the one error body, and the words a caller needs to mend it."""
    body = response.json()
    assert (response.status_code, body["error_type"]) == (status, error_type), body
    assert body["request_id"] == response.headers["x-request-id"]
    for word in words:
        assert word in body["error"]


@pytest.fixture(scope="module")
def post(tiny_server: Server) -> Callable[..., httpx.Response]:
    return lambda path="/similarity", **arguments: tiny_server.client.post(path, **arguments)


Post = Callable[..., httpx.Response]


@pytest.mark.parametrize(
    ("path", "body", "word"),
    [
        ("/similarity", {"pairs": []}, "`pairs` cannot be empty"),
        ("/similarity", {"pairs": [["a", ""]]}, "pairs[0][1] is empty"),
        ("/similarity", {"pairs": [["a", " \n"]]}, "pairs[0][1] is empty"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, "`inputs.sentences` cannot be empty"),
        ("/embed", {"inputs": []}, "`inputs` cannot be empty"),
        ("/embed", {"inputs": ""}, "inputs is empty"),
        ("/calibrate", {"domain": "d", "texts": []}, "no sentence"),
    ],
)
def test_nothing_to_work_on_is_400(post: Post, path: str, body: Any, word: str) -> None:
    check(post(path, json=body), 400, "Empty", word)


@pytest.mark.parametrize(
    ("path", "body", "word"),
    [
        ("/similarity", {"pairs": [["a"]]}, "pairs[0]: List should have at least 2 items"),
        ("/similarity", {"pairs": [["a", "b", "c"]]}, "pairs[0]: List should have at most 2 items"),
        ("/similarity", {"pairs": [["a", 7]]}, "pairs[0][1]"),
        ("/similarity", {"pairs": ["ab"]}, "pairs[0]"),  # a string is no pair
        ("/similarity", {**PAIR, "treshold": 1}, "treshold: unknown field"),
        ("/similarity", {"pairs": [["a", "b"]] * 513}, "at most 512"),
        ("/similarity", {"pairs": [["a", "b" * 10_001]]}, "at most 10000"),
        ("/similarity", {**PAIR, "domain": "../etc"}, "domain"),
        ("/embed", {"inputs": "a", "prompt_name": "query"}, "prompt_name"),
        ("/embed", {"inputs": "a " * 100, "truncate": False}, "more than 32 tokens"),
        ("/embed", {"inputs": "a", "dimensions": 8}, "space: raw"),
        ("/embed", {"inputs": "a", "dimensions": 33, "space": "raw"}, "the encoder has 32"),
        ("/embed", {"inputs": "a", "dimensions": 0, "space": "raw"}, "dimensions"),
        ("/calibrate", {"domain": "d", "texts": ["one", "two", "two"]}, "2 distinct"),
        ("/calibrate", {"domain": "d", "texts": sentences(300), "method": "flow"}, "at least 500"),
        ("/calibrate", {"domain": "d@1", "texts": sentences(300)}, "name without a version"),
        ("/calibrate", {"domain": "d", "texts": ["x" * 10_001]}, "texts[0]"),
        ("/calibrate", {"domain": "d", "texts": sentences(300), "method": "magic"}, "method"),
    ],
)  # fmt: skip
def test_a_field_that_breaks_its_rule_is_named_in_a_422(post: Post, path: str, body: Any, word: str) -> None:
    check(post(path, json=body), 422, "Validation", word)


@pytest.mark.parametrize("raw", [b"{", b"", b"[]", b"null", b"\xff"])
def test_what_is_no_json_object_is_422(post: Post, raw: bytes) -> None:
    check(post(content=raw, headers=JSON), 422, "Validation")


@pytest.mark.parametrize(
    ("kind", "content", "word"),
    [
        ("text/plain; charset=utf-16", b"ok\n\xff\xfe", "line 1 is not utf-16"),
        ("application/x-ndjson", b'"ok"\n{"txt": 1}\n', "line 2: expected"),
        ("application/x-ndjson", b'"ok"\n"\n', "line 2 is not JSON"),
        ("text/plain", b"ok\n" + b"x" * 10_001, "longer than 10,000 characters: 1 (line 2)"),
        ("text/plain", b"ok\n" + b"x" * 2_000_000, "line 2 is longer"),
    ],
)
def test_a_bad_line_is_named(post: Post, kind: str, content: bytes, word: str) -> None:
    check(post("/calibrate?domain=d", content=content, headers={"content-type": kind}), 422, "Validation", word)


def test_text_without_a_domain_is_422(post: Post) -> None:
    check(post("/calibrate", content=b"a\n", headers={"content-type": "text/plain"}), 422, "Validation", "domain")


def test_what_is_not_there_is_404(post: Post, tiny_server: Server) -> None:
    check(post(json={**PAIR, "domain": "nowhere"}), 404, "NotFound", "nowhere")
    check(post(json={**PAIR, "domain": "default@9"}), 404, "NotFound", "version 9")
    check(post(json={**PAIR, "domain": "default@previous"}), 404, "NotFound", "previous")
    get = tiny_server.client.get
    for path in ("/nope", "/domains/nowhere", "/domains/default/versions/9", "/calibrate/" + "0" * 32, "/calibrate/x"):
        check(get(path), 404, "NotFound")


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/embeddings"), ("POST", "/chat/completions"), ("GET", "/models"), ("GET", "/models/isosim")],
)
def test_an_openai_client_without_v1_in_its_address_is_told(tiny_server: Server, method: str, path: str) -> None:
    """Such a client shows `error` only if it has OpenAI's shape."""
    answer = tiny_server.client.request(method, path, json={"model": "isosim", "input": "a"})
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("not_found_error", "notfound")
    assert f"no route {method} {path}; base_url must end with /v1" in error["message"]


def test_a_wrong_method_is_405(tiny_server: Server) -> None:
    response = tiny_server.client.get("/similarity")
    check(response, 405, "MethodNotAllowed", "GET /similarity")
    assert response.headers["allow"] == "POST"
    assert tiny_server.client.put("/calibrate").headers["allow"] == "GET, POST"
    assert tiny_server.client.put("/domains/import").headers["allow"] == "POST"
    assert tiny_server.client.put("/v2/models/isosim/infer").headers["allow"] == "POST"


def test_a_wrong_content_type_is_415(post: Post) -> None:
    check(post(content=b"a", headers={"content-type": "text/csv"}), 415, "UnsupportedMedia", "text/csv")
    form = {"content-type": "multipart/form-data; boundary=x"}
    check(post("/calibrate?domain=d", content=b"a", headers=form), 415, "UnsupportedMedia", "application/octet-stream")


def test_a_body_beyond_the_limit_is_413(post: Post) -> None:
    check(post(content=b" " * 2_000_001, headers=JSON), 413, "TooLarge", "2000000")
    chunks = (b" " * 100_000 for _ in range(21))  # no length declared
    check(post(content=chunks, headers=JSON), 413, "TooLarge")


def test_a_large_json_calibration_is_pointed_to_streaming(post: Post) -> None:
    content = b'{"domain":"d","texts":["' + b"x" * 2_000_000 + b'"]}'
    check(post("/calibrate", content=content, headers=JSON), 413, "TooLarge", "application/x-ndjson")


def test_half_a_surrogate_pair_is_422_tokenizer(post: Post) -> None:
    check(post(content=b'{"pairs": [["\\ud800", "a"]]}', headers=JSON), 422, "Tokenizer", "surrogate")


def test_a_text_the_tokenizer_cannot_take_is_422_tokenizer(serve: Serve, tiny_checkpoint: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint")
    text = (broken / "tokenizer.json").read_text()
    (broken / "tokenizer.json").write_text(text.replace('"unk_token": "[UNK]"', '"unk_token": "[GONE]"'))
    server = serve(model_store=export(tmp_path / "s", "tiny", str(broken), max_length=32), encoder="tiny")
    check(server.client.post("/similarity", json={"pairs": [["中", "a"]]}), 422, "Tokenizer")
    assert server.client.post("/similarity", json=PAIR).status_code == 200


def test_an_encoder_that_fails_is_424(serve: Serve, tiny_checkpoint: Path, tmp_path: Path) -> None:
    import torch
    from transformers import BertModel

    poisoned = shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint")
    model = BertModel.from_pretrained(poisoned)
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[4] = float("nan")  # [MASK]
    model.save_pretrained(poisoned)
    server = serve(model_store=export(tmp_path / "s", "tiny", str(poisoned), max_length=32), encoder="tiny")
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


@pytest.fixture(scope="module")
def keyed(module_serve: Serve, module_store: Path) -> Server:
    (module_store.parent / "keys").write_text(
        f"# who may what\n{hashlib.sha256(b'r').hexdigest()} read domains=* a reader\n"
    )
    return module_serve(model_store=module_store, encoder="tiny", api_keys_file=module_store.parent / "keys")


def test_no_key_or_a_wrong_one_is_401(keyed: Server) -> None:
    for headers in ({}, {"authorization": "Bearer x"}, {"authorization": "Basic r"}):
        response = keyed.client.post("/similarity", json=PAIR, headers=headers)
        check(response, 401, "Unauthorized", "key")
        assert response.headers["www-authenticate"] == "Bearer"


def test_a_key_without_the_scope_is_403(keyed: Server) -> None:
    key = {"authorization": "Bearer r"}
    assert keyed.client.post("/similarity", json=PAIR, headers=key).status_code == 200
    check(keyed.client.post("/calibrate", json={}, headers=key), 403, "Forbidden", "calibrate")
    check(keyed.client.post("/domains/default/rollback", headers=key), 403, "Forbidden", "admin")


def test_probes_and_metrics_need_no_key(keyed: Server) -> None:
    assert [keyed.client.get(path).status_code for path in ("/livez", "/readyz", "/metrics")] == [200, 200, 200]


def test_keys_rotate_without_a_restart(keyed: Server, module_store: Path) -> None:
    def status() -> int:
        return keyed.client.get("/domains", headers={"authorization": "Bearer new"}).status_code

    path = module_store.parent / "keys"
    before = path.read_text()
    assert status() == 401
    path.write_text(before + f"{hashlib.sha256(b'new').hexdigest()} read domains=* late\n")
    wait_until(lambda: status() == 200)
    path.write_text(before)
    wait_until(lambda: status() == 401)


def test_a_state_that_does_not_allow_it_is_409(post: Post, tiny_server: Server) -> None:
    check(post("/domains/default/rollback"), 409, "Conflict", "no previous")


def test_the_version_of_another_encoder_is_409(serve: Serve, store: Path, tiny_checkpoint: Path) -> None:
    export(store, "other", str(tiny_checkpoint), max_length=16)
    first = serve(model_store=store, encoder="tiny")
    assert first.calibrate("letters", sentences(300), promote="always")["status"] == "succeeded"
    first.stop()
    second = serve(model_store=store, encoder="other")
    for domain in ("letters", "letters@1"):
        check(second.client.post("/similarity", json={**PAIR, "domain": domain}), 409, "Conflict", "encoder_mismatch")
    check(second.client.put("/domains/letters/champion", json={"version": 1}), 409, "Conflict", "encoder_mismatch")


def test_a_server_that_cannot_calibrate_is_503_with_the_remedy(
    serve: Serve, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    server = serve(model_store=store, encoder="tiny")
    response = server.client.post("/calibrate", json={"domain": "d", "texts": sentences(300)})
    check(response, 503, "Unavailable", "ISOSIM_LOCAL_WORKER=false")
    assert not [*store.glob("jobs/*"), *store.glob("open/*"), *store.glob("input/*")]


async def ask(app: FastAPI, path: str) -> list[httpx.Response]:
    """One GET while the app is ready and one while it is not, without a socket."""
    answers = []
    async with app.router.lifespan_context(app) as state:

        async def with_state(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "state": dict(state)}, receive, send)

        transport = httpx.ASGITransport(with_state, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answers.append(await client.get(path))
            state["service"].phase = Phase.STOPPING
            answers.append(await client.get(path))
    return answers


def test_a_server_that_is_not_ready_is_503(store: Path) -> None:
    for path in ("/readyz", "/domains"):
        ready, draining = asyncio.run(ask(create_app(Settings(model_store=store, encoder="tiny")), path))
        assert ready.status_code == 200
        check(draining, 503, "Unhealthy", "stopping")
        assert draining.headers["retry-after"]


def test_what_nobody_expected_is_500_without_its_insides(store: Path) -> None:
    app = create_app(Settings(model_store=store, encoder="tiny"))

    @app.get("/broken")
    def broken() -> None:
        raise RuntimeError("a secret")

    response, _ = asyncio.run(ask(app, "/broken"))
    check(response, 500, "Internal")
    assert "secret" not in response.text


def test_every_error_type_has_a_test_in_this_file() -> None:
    named = {node.value for node in ast.walk(ast.parse(Path(__file__).read_text())) if isinstance(node, ast.Constant)}
    assert [error_type for error_type in ERROR_TYPES if error_type not in named] == []
