"""A server that answers every request of one kind alike, for the examples in the client's documentation."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

ENCODER = "9f5731ee66d8356acc380ac9202a33907c693fd43cdf64c6e33538f2531314c0"
RUNNING = {"job": "4c1f0a6de2b8", "domain": "tickets", "status": "running", "stage": "fitting", "progress": 0.6}
SUCCEEDED = RUNNING | {"status": "succeeded", "stage": "succeeded", "progress": 1.0, "version": 3, "promoted": True}
QUEUED = {"job": "b70d9e35c412", "domain": "letters", "status": "queued"}
FILMS = {"job": "0a93c8d1f6e7", "domain": "films", "status": "succeeded"}
VERSIONS = [
    {"version": number, "method": "soft-whitening", "encoder": ENCODER, "sentences": 5000} for number in (1, 2, 3)
]
TICKETS = {"domain": "tickets", "champion": 3, "previous": 2, "revision": 5, "versions": VERSIONS}
EARLIER = TICKETS | {"champion": 2, "previous": 3, "revision": 6}

MATCH = {"job": "8d1b6c02f4e9", "status": "succeeded", "candidates": 15211, "rows": [5000]}
WORTH = {"similarity": 0.9, "passing": 113, "judged": 100, "precision": 0.91, "notices": []}
FOUND = {"text_a": "Printer is jammed.", "text_b": "Paper stuck in the printer.", "similarity": 0.93}
TO_JUDGE = {
    "pair": 17, "similarity": 0.9, "row_a": 4, "row_b": 9, "a": "The printer is jammed.",
    "b": "Paper stuck in the printer.",
}  # fmt: skip

ANSWERS: dict[tuple[str, str], Any] = {
    ("POST", "/similarity"): {
        "domain": "default", "version": 1, "encoder": ENCODER, "method": "identity",
        "cosine": [0.667, -0.034], "similarity": [0.667, -0.034], "percentile": [0.999, 0.217],
        "threshold": {"name": "duplicates", "target": {"fmr": 0.01}, "similarity": 0.412, "version": 1},
        "match": [True, False],
    },
    ("POST", "/embed"): [[0.05] * 384] * 2,
    ("POST", "/rerank"): [{"index": 1, "score": 0.998}, {"index": 0, "score": 0.31}],
    ("GET", "/readyz"): {"status": "ready"},
    ("POST", "/calibrate"): {"job": RUNNING["job"], "domain": "tickets", "status": "queued"},
    ("GET", "/calibrate"): {"jobs": [RUNNING, QUEUED, FILMS]},
    ("GET", "/calibrate/4c1f0a6de2b8"): RUNNING,
    ("DELETE", "/calibrate/4c1f0a6de2b8"): RUNNING | {"status": "cancelled"},
    ("GET", "/domains"): {"domains": [{"domain": "default", "champion": 1, "previous": None}, TICKETS], "next": None},
    ("GET", "/domains/tickets"): TICKETS,
    ("DELETE", "/domains/tickets"): None,
    ("GET", "/domains/tickets/versions/3"): VERSIONS[2] | {"domain": "tickets"},
    ("DELETE", "/domains/tickets/versions/1"): None,
    ("GET", "/domains/tickets/threshold"): {
        "domain": "tickets", "version": 3, "target": {"fmr": 0.01}, "similarity": 0.412, "interval": [0.405, 0.419],
    },
    ("GET", "/domains/tickets/thresholds"): {
        "domain": "tickets", "version": 3, "revision": 5, "thresholds": [
            {"name": "duplicates", "target": {"fmr": 0.01}, "similarity": 0.412, "interval": [0.405, 0.419]},
        ],
    },
    ("PUT", "/domains/tickets/thresholds/duplicates"): {
        "domain": "tickets", "name": "duplicates", "target": {"fmr": 0.01}, "revision": 6,
    },
    ("DELETE", "/domains/tickets/thresholds/duplicates"): None,
    ("POST", "/domains/tickets/labels"): {"job": "d25e7b90a813", "domain": "tickets", "status": "queued"},
    ("PUT", "/domains/tickets/champion"): EARLIER,
    ("POST", "/domains/tickets/rollback"): EARLIER,
    ("POST", "/matches"): {"job": MATCH["job"], "status": "queued", "seconds": 12.0},
    ("GET", "/matches"): {"matches": [MATCH]},
    ("GET", "/matches/8d1b6c02f4e9"): MATCH | {"answer": WORTH},
    ("GET", "/matches/8d1b6c02f4e9/label"): {"pairs": [TO_JUDGE], "judged": 0},
    ("GET", "/matches/8d1b6c02f4e9/result"): FOUND,
    ("POST", "/matches/8d1b6c02f4e9/labels"): {"judged": 2, "matches": 1, "unknown": 0, "until": ""},
    ("DELETE", "/matches/8d1b6c02f4e9"): None,
    ("POST", "/matches/check"): {"domain": "default", "version": 1, "queries": 2, "with_match": 1, "gallery": 2},
}  # fmt: skip
EVENTS = {
    "/calibrate/4c1f0a6de2b8/events": [RUNNING, SUCCEEDED],
    "/matches/8d1b6c02f4e9/events": [MATCH | {"status": "running"}, MATCH],
}
UNKNOWN = {
    "error": "no domain 'boats'", "error_type": "NotFound", "request_id": "r1",
    "remedy": {"action": "list_domains", "arguments": {}, "text": "GET /domains lists the domains"},
}  # fmt: skip


class Handler(BaseHTTPRequestHandler):
    def answer(self) -> None:
        body, path = self.body(), urlsplit(self.path).path
        if path in EVENTS:
            stream = b"".join(b"data: " + json.dumps(state).encode() + b"\n\n" for state in EVENTS[path])
            self.send(200, "text/event-stream", stream)
        elif b'"boats"' in body:
            self.send(404, "application/json", json.dumps(UNKNOWN).encode())
        else:
            answer = ANSWERS[self.command, path]
            self.send(
                *(204, "", b"") if answer is None else (200, "application/json", json.dumps(answer).encode() + b"\n")
            )

    do_GET = do_POST = do_PUT = do_DELETE = answer

    def body(self) -> bytes:
        """The request's body. It is read whole before the answer: a client that still sends would see a reset."""
        if self.headers["transfer-encoding"] != "chunked":
            return self.rfile.read(int(self.headers["content-length"] or 0))
        content = b""
        while size := int(self.rfile.readline(), 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content

    def send(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        if content:
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing: the examples' own output is what is looked at."""


@contextmanager
def example_server() -> Iterator[str]:
    """Its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
