"""Requests that are too large, too deep, too long or no text at all: refused early, in the one form of an error."""

import json
import time
from pathlib import Path
from typing import Any

from tests.faults.load import metric
from tests.processes import Serve, Server, wait_until
from tests.security.conftest import key_line
from tests.text import sentences

JSON = {"content-type": "application/json"}


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


def test_an_inference_tensor_that_is_nested_deep_is_refused(tiny_server: Server) -> None:
    for depth in (100, 190, 900, 100_000):
        data = "[" * depth + '"a"' + "]" * depth
        body = f'{{"inputs":[{{"name":"text","shape":[1],"datatype":"BYTES","data":{data}}}]}}'
        response = tiny_server.client.post("/v2/models/isosim/infer", content=body.encode(), headers=JSON)
        assert response.status_code in (200, 422), response.text[:300]
    assert tiny_server.client.get("/readyz").status_code == 200


def test_a_key_is_asked_for_before_a_body_and_small_bodies_are_bounded_tightly(serve: Serve, store: Path) -> None:
    keys = store.parent / "keys"
    keys.write_text(key_line("k", "read,calibrate,admin"))
    server = serve(model_store=store, encoder="tiny", api_keys_file=keys)
    for path in ("/domains/default/champion", "/domains/default/rollback", "/similarity", "/calibrate", "/nowhere"):
        unsized = (b" " * 5_000 for _ in range(5))
        assert server.client.post(path, content=unsized, headers=JSON).status_code == 401
    known = JSON | {"authorization": "Bearer k"}
    for content in (b" " * 20_000, (b" " * 5_000 for _ in range(5))):
        many = server.client.put("/domains/default/champion", content=content, headers=known)
        assert many.status_code == 413, many.text


def test_a_compressed_body_is_refused_and_not_unpacked(tiny_server: Server) -> None:
    for encoding in ("gzip", "br", "deflate", "zstd", "gzip, identity"):
        response = tiny_server.client.post("/similarity", content=b"x", headers=JSON | {"content-encoding": encoding})
        assert response.status_code == 415
