"""OpenTelemetry traces, sent over OTLP/HTTP by a thread of the SDK. Imported only if tracing is on.

The standard OTEL_* variables apply: sampler, resource attributes, headers, certificates, batching.
"""

import threading
import time
from collections.abc import Iterable, Mapping, Sequence

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from isosim import __version__

Attributes = Mapping[str, str | int | float | bool]
Stage = tuple[str, float, float, Attributes]  # a part of a request: name, start and end (time.perf_counter(), s)

W3C = TraceContextTextMapPropagator()
CARRIED = (b"traceparent", b"tracestate")


class RequestSpan:
    """The span of a request. The spans of its stages are created at the end of the request, from recorded times."""

    def __init__(
        self, tracer: trace.Tracer, parent: Context, started: float, attributes: dict[str, AttributeValue]
    ) -> None:
        self.tracer = tracer
        self.epoch = time.time_ns() - time.perf_counter_ns()  # time at which perf_counter was 0, in ns since 1970
        method = str(attributes["http.request.method"])
        self.span = tracer.start_span(method, parent, SpanKind.SERVER, attributes, start_time=self.at(started))
        self.context = self.span.get_span_context()

    @property
    def traceparent(self) -> str:
        return traceparent(self.context)

    @property
    def ids(self) -> dict[str, str]:
        """Trace and span id for the log lines of this request."""
        return {"trace_id": f"{self.context.trace_id:032x}", "span_id": f"{self.context.span_id:016x}"}

    def end(self, name: str, attributes: Attributes, stages: Sequence[Stage], failure: str | None) -> None:
        if self.span.is_recording():
            self.span.update_name(name)
            self.span.set_attributes(attributes)
            if failure is not None:
                self.span.set_attribute("error.type", failure)
                self.span.set_status(StatusCode.ERROR)
            parent = trace.set_span_in_context(self.span, Context())
            for stage, began, ended, facts in stages:
                child = self.tracer.start_span(stage, parent, attributes=facts, start_time=self.at(began))
                child.end(self.at(ended))
        self.span.end()

    def at(self, moment: float) -> int:
        """Converts a time of perf_counter (s) to ns since 1970."""
        return self.epoch + round(moment * 1e9)


class JobSpan:
    """The trace of a calibration job. It has a link to the span of the request that posted the job."""

    def __init__(self, tracer: trace.Tracer, span: Span) -> None:
        self.tracer, self.span = tracer, span
        self.context = trace.set_span_in_context(span, Context())
        self._stage: Span | None = None

    @property
    def ids(self) -> dict[str, str]:
        context = self.span.get_span_context()
        return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}

    def stage(self, name: str) -> None:
        """Begins a stage and ends the previous one."""
        self.end_stage()
        self._stage = self.tracer.start_span(name, self.context)

    def end_stage(self) -> None:
        if self._stage is not None:
            self._stage.end()
            self._stage = None

    def end(self, attributes: Attributes, failure: str | None) -> None:
        self.end_stage()
        self.span.set_attributes(attributes)
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
        return RequestSpan(self.tracer, parent, started, {"http.request.method": method})

    def calibration(self, posted_by: str | None, attributes: Attributes) -> JobSpan | None:
        """Begins the trace of a calibration job; None if the request that posted the job was not sampled."""
        links = []
        if posted_by is not None:
            context = trace.get_current_span(W3C.extract({"traceparent": posted_by}, Context())).get_span_context()
            if context.is_valid and not context.trace_flags.sampled:
                return None
            links = [Link(context)] if context.is_valid else []
        span = self.tracer.start_span("calibrate", Context(), SpanKind.CONSUMER, attributes, links)
        return JobSpan(self.tracer, span)

    def close(self, seconds: float) -> None:
        """Sends the remaining spans, for at most `seconds`: an unreachable collector must not delay the shutdown."""
        closing = threading.Thread(target=self.provider.shutdown, name="traces-flush", daemon=True)
        closing.start()
        closing.join(seconds)


def traceparent(context: SpanContext) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags) & 1:02x}"
