"""A server with `POST /v1/embeddings` that tests can swap, slow down, break and count."""

import base64
import contextlib
import hashlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from isosim.arrays import Vectors
from isosim.encoders.remote import probes_of
from isosim.encoders.spec import EncoderSpec
from isosim.encoders.store import EncoderArtifact, Endpoint
from isosim.export.remote import PROBES

Answer = Callable[["RemoteServer", list[str]], tuple[int, bytes, dict[str, str]]]


@cache
def vector(text: str, seed: int, dim: int) -> Vectors:
    """A text's vector; another seed is another model."""
    digest = hashlib.sha256(f"{seed} {text}".encode()).digest()
    return np.random.default_rng(list(digest)).normal(size=dim).astype(np.float32)


@dataclass
class RemoteServer:
    """What it is asked stands in `requests`; `seed` and `answer` may be changed while it runs."""

    dim: int = 16
    seed: int = 0
    wait: float = 0.0  # s before each answer
    answer: Answer | None = None
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""
    under_way: int = 0
    most_under_way: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def texts(self) -> list[str]:
        """Everything it was asked for but probes."""
        return [text for request in self.requests for text in request["input"] if text not in PROBES]

    def vectors(self, texts: list[str]) -> Vectors:
        seed = self.seed  # it may change meanwhile: no model does within one answer
        return np.array([vector(text, seed, self.dim) for text in texts])

    def entries(self, texts: list[str], *, as_base64: bool = True) -> list[dict[str, Any]]:
        rows = self.vectors(texts)
        return [
            {"index": i, "embedding": base64.b64encode(row.tobytes()).decode() if as_base64 else row.tolist()}
            for i, row in enumerate(rows)
        ]

    def respond(self, body: dict[str, Any]) -> tuple[int, bytes, dict[str, str]]:
        texts: list[str] = body["input"]
        if self.answer is not None:
            return self.answer(self, texts)
        entries = self.entries(texts, as_base64=body.get("encoding_format") == "base64")
        return 200, json.dumps({"data": entries}).encode(), {}

    @contextmanager
    def running(self, port: int = 0) -> Iterator["RemoteServer"]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with outer.lock:
                    outer.requests.append(body)
                    outer.headers.append(dict(self.headers))
                    outer.under_way += 1
                    outer.most_under_way = max(outer.most_under_way, outer.under_way)
                time.sleep(outer.wait)
                status, content, headers = outer.respond(body)
                with outer.lock:
                    outer.under_way -= 1
                self.send_response(status)
                for name, value in {"content-length": str(len(content)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                try:
                    self.wfile.write(content)
                except OSError:
                    self.close_connection = True

            def log_message(self, *_: object) -> None:
                """Nothing."""

        connections: list[socket.socket] = []

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def process_request(self, request: Any, client_address: Any) -> None:
                connections.append(request)
                super().process_request(request, client_address)

        with Server(("127.0.0.1", port), Handler) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
            thread.start()
            self.url = f"http://127.0.0.1:{server.server_port}/v1"
            try:
                yield self
            finally:
                server.shutdown()
                thread.join()
                for connection in connections:
                    with contextlib.suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)

    def artifact(self, **endpoint: Any) -> EncoderArtifact:
        """As its registration would leave it, without files."""
        spec = EncoderSpec("m", "w", "", "remote", 0, 100, "", "remote", self.dim, 0)
        probes = probes_of(PROBES, self.vectors(list(PROBES)))
        place = Endpoint(**{"url": self.url, "model": "m", **endpoint})
        return EncoderArtifact("far", spec, None, remote=place, probes=probes)  # type: ignore[arg-type]
