"""A receiver of traces: what an exporter sends over OTLP/HTTP, decoded."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue


def plain(attributes: Any) -> dict[str, Any]:
    def value(one: KeyValue) -> Any:
        return getattr(one.value, str(one.value.WhichOneof("value")))

    return {one.key: value(one) for one in attributes}


@dataclass
class Span:
    service: str
    name: str
    trace: str  # hexadecimal, as are the ids
    id: str
    parent: str
    kind: int
    begin: int  # ns since the epoch
    end: int
    attributes: dict[str, Any]
    failed: bool


@dataclass
class Collector:
    url: str
    spans: list[Span] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)

    def take(self, body: bytes) -> None:
        self.raw.append(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = plain(resource.resource.attributes)["service.name"]
            for span in (span for scope in resource.scope_spans for span in scope.spans):
                self.spans.append(
                    Span(
                        service, span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(),
                        span.kind, span.start_time_unix_nano, span.end_time_unix_nano, plain(span.attributes),
                        span.status.code == 2,
                    )
                )  # fmt: skip

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


@contextmanager
def collecting() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.path == "/v1/traces":
                collector.take(gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body)
            self.send_response(200 if self.path == "/v1/traces" else 404)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield collector
        server.shutdown()
        thread.join()
