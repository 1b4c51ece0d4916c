"""What a request for scores does once and what it does never, counted call by call on the event loop's thread."""

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import orjson
import pytest

from isosim.server.app import create_app
from isosim.settings import Settings
from tests.text import sentences

ONCE = {  # of a request, by the functions' qualified names
    "resolve": 1,
    "Registry.in_memory": 1,
    "Trace.as_headers": 1,
    "ScoringRequest._record": 1,
}
NEVER = {"EncoderSpec.digest", "Calibration.origin", "Calibration.notices"}  # once a version
FILES = {"open", "stat", "lstat", "scandir", "listdir"}
DIGESTS = {"sha256", "openssl_sha256", "sha1", "openssl_sha1", "md5", "openssl_md5", "hexdigest"}
BODIES: dict[str, dict[str, Any]] = {
    "/similarity": {"pairs": [["the garden gate", "an open door"]]},
    "/embed": {"inputs": ["the garden gate", "an open door"]},
    "/rerank": {"query": "the garden gate", "texts": ["an open door"]},
    "/v1/embeddings": {"model": "isosim/default", "input": ["the garden gate", "an open door"]},
}


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Calls of Python functions, and of those in C, meanwhile."""
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, called: Any) -> None:
        if event == "call":
            calls[frame.f_code.co_qualname] += 1
        elif event == "c_call":
            calls[f"C {called.__name__}"] += 1

    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)


async def work(settings: Settings, path: str) -> list[Counter[str]]:
    """Of three equal requests, the first of which alone has texts that are not known yet."""
    app = create_app(settings)
    body = orjson.dumps(BODIES[path])
    found = []
    async with app.router.lifespan_context(app) as state:
        for _ in range(3):
            sent: list[Any] = []
            parts = iter([{"type": "http.request", "body": body, "more_body": False}])

            async def receive(parts: Iterator[Any] = parts) -> Any:
                part = next(parts, None)
                return part or await asyncio.Event().wait()

            async def send(message: Any, sent: list[Any] = sent) -> None:
                sent.append(message)

            head = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
            scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": path, "query_string": b""}
            with counted() as calls:
                await app({**scope, "headers": head, "state": dict(state or {})}, receive, send)
            assert sent[0]["status"] == 200
            found.append(calls)
    return found


@pytest.mark.parametrize("path", BODIES)
def test_a_request_hashes_resolves_and_reads_nothing_twice(store: Path, path: str) -> None:
    for number, calls in enumerate(asyncio.run(work(Settings(model_store=store, encoder="tiny"), path))):
        assert {name: calls[name] for name in ONCE} == ONCE
        assert not any(calls[f"C {name}"] for name in FILES | DIGESTS)
        assert calls["Embedder.key"] == calls["C digest"] == 2  # a key for each of the two texts
        if number:  # the first request of a version prepares what all its answers have
            assert not any(calls[name] for name in NEVER)


LARGE: dict[str, dict[str, Any]] = {
    "/embed": {"inputs": sentences(100)},
    "/v1/embeddings": {"model": "isosim", "input": sentences(100)},
    "/v2/models/isosim/infer": {
        "inputs": [{"name": "text", "shape": [100], "datatype": "BYTES", "data": sentences(100)}]
    },
    "/percentile": {"cosines": [0.5], "domain": "default" + " " * 70_000},
}


@pytest.mark.anyio
@pytest.mark.parametrize("path", LARGE)
async def test_large_json_is_read_and_written_one_at_a_time(store: Path, path: str) -> None:
    """Eight answers with 2,048 vectors at once kept /livez waiting for 0.3 s."""
    app = create_app(Settings(model_store=store, encoder="tiny"))
    async with app.router.lifespan_context(app) as state:
        service = (state or {})["service"]

        async def with_state(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "state": dict(state or {})}, receive, send)

        transport = httpx.ASGITransport(with_state)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            assert (await client.post(path, json=LARGE[path])).status_code in (
                200,
                422,
            )  # its texts are known from now on
            another = threading.Event()
            held = asyncio.create_task(service.large_json(another.wait))
            answer = asyncio.create_task(client.post(path, json=LARGE[path]))
            try:
                for _ in range(20):  # requests with little JSON go on meanwhile
                    assert (await client.post("/embed", json=BODIES["/embed"])).status_code == 200
                assert not answer.done()
            finally:
                another.set()
            await held
            assert (await answer).status_code in (200, 422)
