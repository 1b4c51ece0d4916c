"""Requests that are too large, too deep, too long or no text at all: refused early, in the one form of an error."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.faults.load import metric
from tests.processes import Serve, Server, wait_until
from tests.text import sentences

JSON = {"content-type": "application/json"}
BODIES = [
    "/similarity", "/embed", "/rerank", "/score", "/v1/embeddings", "/calibrate", "/tokenize",
    "/v2/models/isosim/infer", "/domains/default/champion", "/domains/default/labels",
]  # fmt: skip


def test_a_request_that_takes_too_long_is_answered_503_and_its_work_is_dropped(serve: Serve, store: Path) -> None:
    """Two thousand texts, one a batch: seconds of work, of which a fraction is done."""
    server = serve(
        model_store=store, encoder="tiny", request_timeout=0.3, max_batch_tokens=1, max_wait=600, memory_cache_bytes=0,
        runs=1,
    )  # fmt: skip
    texts = sentences(2000)
    begun = time.monotonic()
    response = server.client.post("/embed", json={"inputs": texts})
    body = response.json()
    assert (response.status_code, body["error_type"]) == (503, "Unavailable"), body
    assert "longer than 0.3 s" in body["error"]
    assert body["request_id"] == response.headers["x-request-id"]
    assert int(response.headers["retry-after"]) >= 1
    wait_until(lambda: "isosim_queued_texts 0.0" in server.client.get("/metrics").text)
    v1 = server.client.post("/v1/embeddings", json={"model": "isosim", "input": [f"{text} 2" for text in texts]})
    assert (v1.status_code, v1.json()["error"]["type"]) == (503, "service_unavailable_error")
    assert time.monotonic() - begun < 30
    wait_until(lambda: "isosim_queued_texts 0.0" in server.client.get("/metrics").text)
    assert metric(server, "isosim_batch_texts_sum") < 4000
    assert server.client.post("/embed", json={"inputs": "a"}).status_code == 200


def test_a_long_content_type_is_refused_before_it_is_parsed(tiny_server: Server) -> None:
    """Python 3.11.7 takes 4 s to split this one, in which no other request is answered."""
    for path in ("/inspect", "/matches", "/calibrate?domain=x", "/similarity", "/v2/models/isosim/infer"):
        begun = time.monotonic()
        header = {"content-type": 'text/csv;"' + ";" * 60_000}
        response = tiny_server.client.post(path, content=b"a", headers=header)
        assert (response.status_code, "content-type" in response.text) == (415, True), response.text
        assert time.monotonic() - begun < 2


def test_cookies_are_not_parsed(tiny_server: Server) -> None:
    """No route reads them. For this one, Python 3.11.7 takes 20 s, in which no other request is answered."""
    for path in ("/livez", "/info", "/nowhere"):
        begun = time.monotonic()
        tiny_server.client.get(path, headers={"cookie": 'a="' + "\\\\1" * 20_000 + '"'})
        assert time.monotonic() - begun < 2


def test_calibrations_and_event_streams_are_not_cut_off(serve: Serve, store: Path) -> None:
    server = serve(model_store=store, encoder="tiny", request_timeout=0.3)
    lines = [f"{text}\n".encode() for text in sentences(300)]

    def slowly() -> Any:
        for line in lines[:10]:
            yield line
            time.sleep(0.1)
        yield b"".join(lines[10:])

    kind = {"content-type": "text/plain"}
    job = server.client.post("/calibrate?domain=d&method=identity", content=slowly(), headers=kind).json()["job"]
    with server.client.stream("GET", f"/calibrate/{job}/events") as events:
        states = [json.loads(line[6:])["status"] for line in events.iter_lines() if line.startswith("data: ")]
    assert states[-1] == "succeeded"


@pytest.mark.parametrize("path", BODIES)
def test_json_that_is_nested_too_deep_is_refused(tiny_server: Server, path: str) -> None:
    method = "PUT" if path.endswith("champion") else "POST"
    for opening in (b"[", b'{"a":', b'{"pairs":[', b'{"inputs":[', b'{"text_1":[', b'[{"a":'):
        for depth in (300, 1500):
            response = tiny_server.client.request(method, path, content=opening * depth, headers=JSON)
            assert response.status_code in (400, 413, 422), response.text
            assert len(response.content) < 2000  # nothing of it is sent back
    assert tiny_server.client.get("/readyz").status_code == 200


def test_an_inference_tensor_that_is_nested_deep_is_refused(tiny_server: Server) -> None:
    for depth in (100, 190, 900, 100_000):
        data = "[" * depth + '"a"' + "]" * depth
        body = f'{{"inputs":[{{"name":"text","shape":[1],"datatype":"BYTES","data":{data}}}]}}'
        response = tiny_server.client.post("/v2/models/isosim/infer", content=body.encode(), headers=JSON)
        assert response.status_code in (200, 422), response.text[:300]
    assert tiny_server.client.get("/readyz").status_code == 200


def test_half_a_surrogate_pair_is_no_text_on_any_route(tiny_server: Server) -> None:
    half = '"\\ud800"'
    for path, body in (
        ("/similarity", f'{{"pairs": [[{half}, "b"]]}}'), ("/embed", f'{{"inputs": {half}}}'),
        ("/calibrate", f'{{"domain": "d", "texts": [{half}]}}'), ("/tokenize", f'{{"inputs": {half}}}'),
        ("/v1/embeddings", f'{{"model": "isosim", "input": {half}}}'),
        ("/similarity", f'{{"pairs": [["a", "b"]], {half}: 1}}'),
        ("/v2/models/isosim/infer", f'{{"inputs":[{{"name":"text","shape":[1],"datatype":"BYTES","data":[{half}]}}]}}'),
        ("/rerank", f'{{"query": {half}, "texts": ["a"]}}'),
        ("/domains/default/labels", f'{{"labels": [[{half}, "b", 1]]}}'),
        ("/calibrate?domain=d", half + "\n"),
    ):  # fmt: skip
        kind = {"content-type": "application/x-ndjson"} if "?" in path else JSON
        response = tiny_server.client.post(path, content=body.encode(), headers=kind)
        assert response.status_code in (400, 422), (path, response.text)


def test_a_compressed_body_is_refused_and_not_unpacked(tiny_server: Server) -> None:
    for encoding in ("gzip", "br", "deflate", "zstd", "gzip, identity"):
        response = tiny_server.client.post("/similarity", content=b"x", headers=JSON | {"content-encoding": encoding})
        assert response.status_code == 415
