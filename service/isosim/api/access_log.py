"""Access log and trace of each request."""

import asyncio
import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from starlette.types import Scope

from isosim.api.trace import Trace
from isosim.errors import Forbidden, IsosimError
from isosim.observability.logs import Facts, about, told
from isosim.observability.traces import posting

if TYPE_CHECKING:
    from isosim.observability.otlp import Attributes, RequestSpan, Stage, Tracing

LOGGER = "isosim.access"
SLOW = 1.0  # a request that takes this many seconds is logged as slow
METHODS = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"}
# Names of span attributes by OpenTelemetry's conventions for HTTP servers; others begin with `isosim.`.
CONVENTIONS = {
    "method": "http.request.method", "route": "http.route", "status": "http.response.status_code",
    "client": "client.address",
}  # fmt: skip


def method_of(scope: Scope) -> str:
    """The request's method; unknown methods, which callers may invent, are logged as `_OTHER`."""
    return scope["method"] if scope["method"] in METHODS else "_OTHER"


def failed(status: int) -> bool:
    return status >= 500 or status == 424


Write = Callable[[str, str, str, Facts], None]  # writes a line: level, logger, message, facts


class Observer:
    """Counts, logs and traces requests; the middleware calls it when a request begins and ends.

    Logs every request (`which`: "all"), only slow and failed requests ("slow"), or only failed requests ("off"). A
    request has failed if its status is 5xx or 424 (the encoder failed). A failed request is logged with its cause, at
    level `error`. Requests of probes are logged only if they failed, and at level `info`.
    """

    def __init__(
        self, write: Write | None, which: Literal["all", "slow", "off"] = "all", tracing: "Tracing | None" = None
    ) -> None:
        self.write, self.tracing = write, tracing
        self.least = {"all": 0.0, "slow": SLOW, "off": math.inf}[which]  # shortest duration that is logged, in s
        self.under_way = 0
        self.answered = 0
        self.aborted = 0  # number of requests cancelled before the answer was complete
        # deadline by which open requests must be finished (time.perf_counter()); None until the server begins to stop
        self.drained_by: float | None = None

    def begin(self, scope: Scope, trace: Trace) -> "RequestSpan | None":
        self.under_way += 1
        facts = {"request_id": trace.request_id}
        span = None
        if self.tracing is not None and not trace.probe:
            span = self.tracing.request(method_of(scope), scope["headers"], trace.started)
            posting.set(span.traceparent)
            facts |= span.ids
        about.set(facts)
        return span

    def end(self, scope: Scope, trace: Trace, span: "RequestSpan | None", route: str, seconds: float) -> None:
        self.under_way -= 1
        if isinstance(sys.exception(), asyncio.CancelledError):
            self.aborted += 1
        else:
            self.answered += 1
        status = trace.status
        logged = self.logs(status, seconds, probe=trace.probe)
        if not logged and span is None:
            return
        facts = facts_of(scope, trace, route, seconds)
        if span is not None:
            # By OpenTelemetry's conventions, 4xx is not a failure of the server.
            failure = (trace.error_type or str(status)) if status >= 500 else None
            span.end(f"{facts['method']} {route}", attributes(scope, trace, facts), stages(trace), failure)
        if logged:
            self._log(facts, trace)

    def logs(self, status: int, seconds: float, *, probe: bool) -> bool:
        """Whether a request is logged."""
        return self.write is not None and (failed(status) or (seconds >= self.least and not probe))

    def _log(self, facts: dict[str, Any], trace: Trace) -> None:
        assert self.write is not None  # noqa: S101 - see `logs`
        status, cause = facts["status"], trace.cause
        if failed(status) and cause is not None:
            facts |= told(cause)
            if isinstance(cause, IsosimError):  # its type and message say where it comes from
                del facts["stack"]
        level = "error" if failed(status) and not trace.probe else "info"
        self.write(level, LOGGER, f"{facts['method']} {facts['route']} {status}", facts)


def facts_of(scope: Scope, trace: Trace, route: str, seconds: float) -> dict[str, Any]:
    """What the access log and the trace tell of a request: neither its path, which may name a domain or job, nor its
    texts, nor its key, but the name of the key."""
    facts = {"method": method_of(scope), "route": route, "status": trace.status, "duration_ms": milliseconds(seconds)}
    if trace.error_type is not None:
        facts["error_type"] = trace.error_type
        if isinstance(trace.cause, Forbidden) and trace.cause.domain is not None:
            facts["domain"] = trace.cause.domain
    facts |= scoring(trace)
    if trace.grant.name:
        facts["caller"] = trace.grant.name
    client = scope.get("client")
    if client:
        facts["client"] = client[0]
    return facts


def scoring(trace: Trace) -> dict[str, Any]:
    """Facts of a scoring request: its domain and version, its cache hits, and the duration of each stage."""
    calibration, made = trace.calibration, trace.embeddings
    if calibration is None or made is None:
        return {}
    facts: dict[str, Any] = {
        "domain": calibration.domain,
        "version": calibration.version,
        "texts": len(made.rows),
        "tokens": made.tokens,
        "memory_hits": made.memory_hits,
        "redis_hits": made.shared_hits,
        "cache_ms": milliseconds(made.cache),
        "tokenization_ms": milliseconds(made.tokenization),
        "queue_ms": milliseconds(made.queue),
        "inference_ms": milliseconds(made.inference),
        "calibration_ms": milliseconds(trace.calibrating),
    }
    # Number of texts that another request was already computing; only that request's log entry counts their tokens.
    if made.joined:
        facts["joined"] = made.joined
    return facts


def stages(trace: Trace) -> "list[Stage]":
    """Stages of a scoring request, in order of time.

    The durations of the stages are known, but not their starts. The last stage, calibration, ends at
    `trace.calibrated`. Each earlier stage is assumed to end when the next stage begins.

    The durations may add up to more than the request took: each is the duration for the slowest text, which may be a
    different text in each stage. A stage that would begin before the request is therefore shortened.
    """
    made = trace.embeddings
    if made is None or trace.calibration is None:
        return []
    parts: list[tuple[str, float, Attributes]] = [
        ("calibration", trace.calibrating, {"isosim.method": trace.calibration.method})
    ]
    if made.joined or made.computed:
        parts += [
            ("inference", made.inference, {"isosim.tokens": made.tokens}),
            ("queue", made.queue, {}),
            ("tokenize", made.tokenization, {}),
        ]
    counts = {"memory_hits": made.memory_hits, "redis_hits": made.shared_hits}
    counts |= {"joined": made.joined, "computed": made.computed}
    parts.append(("cache", made.cache, {f"isosim.cache.{name}": count for name, count in counts.items()}))
    found: list[Stage] = []
    end = trace.calibrated
    for name, seconds, about_it in parts:
        begin = max(trace.started, end - seconds)
        found.append((name, begin, end, about_it))
        end = begin
    return found[::-1]


def attributes(scope: Scope, trace: Trace, facts: dict[str, Any]) -> "Attributes":
    """Attributes of a request's span. Durations are those of the span and of its stages."""
    named = {
        CONVENTIONS.get(name, f"isosim.{name}"): value for name, value in facts.items() if not name.endswith("_ms")
    }
    named |= {"url.scheme": scope.get("scheme", "http"), "network.protocol.version": scope.get("http_version", "")}
    return named | {"isosim.request_id": trace.request_id}


def milliseconds(seconds: float) -> float:
    return round(seconds * 1e3, 3)
