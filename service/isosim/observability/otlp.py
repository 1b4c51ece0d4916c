"""OpenTelemetry traces, sent over OTLP/HTTP by a thread of the SDK. Imported only if tracing is on.

The standard OTEL_* variables apply: sampler, resource attributes, headers, certificates, batching.
"""

import threading
import time
from collections.abc import Iterable, Mapping

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from isosim import __version__

Attributes = Mapping[str, str | int | float | bool]

W3C = TraceContextTextMapPropagator()
CARRIED = (b"traceparent", b"tracestate")


# Names of span attributes by OpenTelemetry's conventions for HTTP servers; others begin with `isosim.`.
CONVENTIONS = {
    "method": "http.request.method", "route": "http.route", "status": "http.response.status_code",
    "client": "client.address",
}  # fmt: skip


class RequestSpan:
    """The span of a request, whose attributes are the facts of the access log."""

    def __init__(self, span: Span) -> None:
        self.span = span
        self.context = span.get_span_context()

    @property
    def ids(self) -> dict[str, str]:
        """Trace and span id for the log lines of this request."""
        return {"trace_id": f"{self.context.trace_id:032x}", "span_id": f"{self.context.span_id:016x}"}

    def end(self, name: str, facts: Attributes, failure: str | None) -> None:
        self.span.update_name(name)
        self.span.set_attributes({CONVENTIONS.get(name, f"isosim.{name}"): value for name, value in facts.items()})
        if failure is not None:
            self.span.set_attribute("error.type", failure)
            self.span.set_status(StatusCode.ERROR)
        self.span.end()


class Tracing:
    """A tracer provider for our spans only. Spans of libraries, which may contain callers' texts, are not sent."""

    def __init__(self, name: str) -> None:
        ours = Resource.create({"service.name": name, "service.version": __version__})
        self.provider = TracerProvider(resource=ours.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
        self.provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self.tracer = self.provider.get_tracer("isosim", __version__)

    def request(self, method: str, headers: Iterable[tuple[bytes, bytes]], started: float) -> RequestSpan:
        """Begins the span of a request. With a `traceparent` header, the span is a child of the caller's span."""
        carrier = {name.decode(): value.decode("latin-1") for name, value in headers if name in CARRIED}
        parent = W3C.extract(carrier, Context()) if carrier else Context()
        attributes = {"http.request.method": method}
        start = time.time_ns() - round((time.perf_counter() - started) * 1e9)
        return RequestSpan(self.tracer.start_span(method, parent, SpanKind.SERVER, attributes, start_time=start))

    def close(self, seconds: float) -> None:
        """Sends the remaining spans, for at most `seconds`: an unreachable collector must not delay the shutdown."""
        closing = threading.Thread(target=self.provider.shutdown, name="traces-flush", daemon=True)
        closing.start()
        closing.join(seconds)
