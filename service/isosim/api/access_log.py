"""Access log and trace of each request."""

import asyncio
import math
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from starlette.types import Scope

from isosim.api.trace import Scored, Trace, attributes_of, stages
from isosim.errors import Forbidden, IsosimError
from isosim.observability.lines import Facts, about, told
from isosim.observability.tracing import Attributes, posting

if TYPE_CHECKING:
    from isosim.observability.otlp import RequestSpan, Tracing

METHODS = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"}


def method_of(scope: Scope) -> str:
    """The request's method; unknown methods, which callers may invent, are logged as `_OTHER`."""
    return scope["method"] if scope["method"] in METHODS else "_OTHER"


class AccessEntry(NamedTuple):
    """Method, route, result and duration of a request that has ended."""

    method: str
    route: str  # the route's template; not the path, which may name a domain or job
    status: int
    seconds: float
    client: str | None  # address
    caller: str | None  # name of the API key, never the key itself

    @property
    def failed(self) -> bool:
        """True for 5xx (the server failed) and 424 (the encoder failed); any other 4xx is the client's error."""
        return self.status >= 500 or self.status == 424


# Minimum seconds between two logged stack traces of the same error; chosen without a measurement. While a store cannot
# be reached, every request fails at the same line, and a stack trace of 3 kB for each would fill the log.
STACK_SECONDS = 60.0
MOST_STACKS = 100


class AccessLog:
    """Logs every request (`which`: "all"), only slow and failed requests ("slow"), or only failed requests ("off").

    A request has failed if its status is 5xx or 424. A failed request is logged with its cause, at level `error`. The
    stack trace of a repeated cause is logged at most once a minute. Requests to PROBES are logged only if they failed,
    and at level `info`.
    """

    def __init__(
        self, write: Callable[[str, str, str, Facts], None], which: Literal["all", "slow", "off"], slow: float
    ) -> None:
        self.write = write
        self.least = {"all": 0.0, "slow": slow, "off": math.inf}[which]  # shortest duration that is logged, in s
        # Key: error and line that raised it. Value: time.monotonic() when this error's stack trace was last logged.
        self._stacks: dict[tuple[object, object], float] = {}

    def __call__(self, trace: Trace, ended: AccessEntry) -> None:
        wanted = ended.failed or (ended.seconds >= self.least and ended.route not in PROBES)
        if not wanted:
            return
        facts: dict[str, Any] = {
            "method": ended.method,
            "route": ended.route,
            "status": ended.status,
            "duration_ms": milliseconds(ended.seconds),
        }
        if trace.error_type is not None:
            facts["error_type"] = trace.error_type
            if isinstance(trace.cause, Forbidden) and trace.cause.domain is not None:
                facts["domain"] = trace.cause.domain
        if trace.scored is not None:
            facts |= scoring(trace.scored)
        if ended.caller:
            facts["caller"] = ended.caller
        if ended.client:
            facts["client"] = ended.client
        if ended.failed and trace.cause is not None:
            facts |= self._cause(trace.cause)
        level = "error" if ended.failed and ended.route not in PROBES else "info"
        self.write(level, LOGGER, f"{ended.method} {ended.route} {ended.status}", facts)

    def _cause(self, error: Exception) -> dict[str, Any]:
        """Log fields for an error: its type and its causes. A message that could quote a client's text is left out.

        Unless the error is an IsosimError, the fields include the line that raised it and its stack trace. If the same
        line raises the same error again within STACK_SECONDS, the stack trace is left out.
        """
        facts = told(error)
        stack = facts.pop("stack")
        if isinstance(error, IsosimError) or not isinstance(stack, list):
            return facts
        place, now = stack[-1] if stack else None, time.monotonic()
        facts["at"] = place
        if now - self._stacks.get((facts["error"], place), -STACK_SECONDS) >= STACK_SECONDS:
            if len(self._stacks) >= MOST_STACKS:
                self._stacks.clear()
            self._stacks[facts["error"], place] = now
            facts["stack"] = stack
        return facts


class Observer:
    """Counts, logs and traces requests; the middleware calls it when a request begins and ends."""

    def __init__(self, access: AccessLog | None = None, tracing: "Tracing | None" = None) -> None:
        self.access, self.tracing = access, tracing
        self.under_way = 0
        self.answered = 0
        self.aborted = 0  # number of requests cancelled before the answer was complete
        # deadline by which open requests must be finished (time.perf_counter()); None until the server begins to stop
        self.drained_by: float | None = None

    def begin(self, scope: Scope, trace: Trace) -> "RequestSpan | None":
        self.under_way += 1
        facts = {"request_id": trace.request_id}
        span = None
        if self.tracing is not None and scope["path"] not in PROBES:
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
        if self.access is None and span is None:
            return
        client = scope.get("client")
        ended = AccessEntry(
            method=method_of(scope),
            route=route,
            status=status,
            seconds=seconds,
            client=client[0] if client else None,
            caller=trace.grant.name or None,
        )
        if self.access is not None:
            self.access(trace, ended)
        if span is not None:
            name = f"{ended.method} {route}"
            parts = [] if trace.scored is None else stages(trace.scored, trace.started)
            # By OpenTelemetry's conventions, 4xx is not a failure of the server.
            failure = (trace.error_type or str(status)) if status >= 500 else None
            span.end(name, attributes(scope, trace, ended), parts, failure)


def attributes(scope: Scope, trace: Trace, ended: AccessEntry) -> Attributes:
    """Span attributes by OpenTelemetry's conventions for HTTP servers.

    `url.path` is omitted, because the path may contain the name of a domain or the id of a job. `http.route` has the
    route's template without such values.
    """
    facts: dict[str, str | int | float | bool] = {
        "http.route": ended.route,
        "http.response.status_code": ended.status,
        "url.scheme": scope.get("scheme", "http"),
        "network.protocol.version": scope.get("http_version", ""),
        "isosim.request_id": trace.request_id,
    }
    if ended.client:
        facts["client.address"] = ended.client
    if ended.caller:
        facts["isosim.caller"] = ended.caller
    if trace.error_type:
        facts["isosim.error_type"] = trace.error_type
    return facts if trace.scored is None else {**facts, **attributes_of(trace.scored)}


PROBES = {
    "/livez",
    "/readyz",
    "/metrics",
    "/health",
    "/v2/health/live",
    "/v2/health/ready",
}  # routes that answer even before the server is ready
LOGGER = "isosim.access"


def scoring(scored: Scored) -> dict[str, Any]:
    """Log fields of a scoring request: its domain and version, its cache hits, and the duration of each stage."""
    embeddings = scored.embeddings
    timings, lookup = embeddings.timings, embeddings.lookup
    facts: dict[str, Any] = {
        "domain": scored.calibration.domain,
        "version": scored.calibration.version,
        "texts": len(embeddings.rows),
        "tokens": timings.tokens,
        "memory_hits": lookup.memory_hits,
        "redis_hits": lookup.shared_hits,
        "cache_ms": milliseconds(timings.cache),
        "tokenization_ms": milliseconds(timings.tokenization),
        "queue_ms": milliseconds(timings.queue),
        "inference_ms": milliseconds(timings.inference),
        "calibration_ms": milliseconds(scored.spent),
    }
    # Number of texts that another request was already computing; only that request's log entry counts their tokens.
    if lookup.joined:
        facts["joined"] = lookup.joined
    return facts


def milliseconds(seconds: float) -> float:
    return round(seconds * 1e3, 3)
