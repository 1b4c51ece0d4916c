"""Access log and trace of each request."""

import asyncio
import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from starlette.types import Scope

from isosim.api.trace import Trace, stages
from isosim.errors import Forbidden, IsosimError
from isosim.observability.logs import Facts, about, told
from isosim.observability.tracing import Attributes, posting
from isosim.scoring.similarity import Scored

if TYPE_CHECKING:
    from isosim.observability.otlp import RequestSpan, Tracing

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

    def end(
        self, scope: Scope, trace: Trace, span: "RequestSpan | None", route: str, status: int, seconds: float
    ) -> None:
        self.under_way -= 1
        if isinstance(sys.exception(), asyncio.CancelledError):
            self.aborted += 1
        else:
            self.answered += 1
        logged = self.logs(status, seconds, probe=trace.probe)
        if not logged and span is None:
            return
        facts = facts_of(scope, trace, route, status, seconds)
        if span is not None:
            parts = [] if trace.scored is None else stages(trace.scored, trace.started)
            # By OpenTelemetry's conventions, 4xx is not a failure of the server.
            failure = (trace.error_type or str(status)) if status >= 500 else None
            span.end(f"{facts['method']} {route}", attributes(scope, trace, facts), parts, failure)
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


def facts_of(scope: Scope, trace: Trace, route: str, status: int, seconds: float) -> dict[str, Any]:
    """What the access log and the trace tell of a request: neither its path, which may name a domain or job, nor its
    texts, nor its key, but the name of the key."""
    facts = {"method": method_of(scope), "route": route, "status": status, "duration_ms": milliseconds(seconds)}
    if trace.error_type is not None:
        facts["error_type"] = trace.error_type
        if isinstance(trace.cause, Forbidden) and trace.cause.domain is not None:
            facts["domain"] = trace.cause.domain
    if trace.scored is not None:
        facts |= scoring(trace.scored)
    if trace.grant.name:
        facts["caller"] = trace.grant.name
    client = scope.get("client")
    if client:
        facts["client"] = client[0]
    return facts


def scoring(scored: Scored) -> dict[str, Any]:
    """Facts of a scoring request: its domain and version, its cache hits, and the duration of each stage."""
    embeddings = scored.embeddings
    work = embeddings.work
    facts: dict[str, Any] = {
        "domain": scored.calibration.domain,
        "version": scored.calibration.version,
        "texts": len(embeddings.rows),
        "tokens": work.tokens,
        "memory_hits": work.memory_hits,
        "redis_hits": work.shared_hits,
        "cache_ms": milliseconds(work.cache),
        "tokenization_ms": milliseconds(work.tokenization),
        "queue_ms": milliseconds(work.queue),
        "inference_ms": milliseconds(work.inference),
        "calibration_ms": milliseconds(scored.spent),
    }
    # Number of texts that another request was already computing; only that request's log entry counts their tokens.
    if work.joined:
        facts["joined"] = work.joined
    return facts


def attributes(scope: Scope, trace: Trace, facts: dict[str, Any]) -> Attributes:
    """Attributes of a request's span. Durations are those of the span and of its stages."""
    named = {
        CONVENTIONS.get(name, f"isosim.{name}"): value for name, value in facts.items() if not name.endswith("_ms")
    }
    named |= {"url.scheme": scope.get("scheme", "http"), "network.protocol.version": scope.get("http_version", "")}
    return named | {"isosim.request_id": trace.request_id}


def milliseconds(seconds: float) -> float:
    return round(seconds * 1e3, 3)
