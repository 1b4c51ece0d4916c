"""What is told of a request beside its answer: a line in the log, a trace."""

import asyncio
import sys
from typing import TYPE_CHECKING

from starlette.types import Scope

from service.api.request_log import PROBES, AccessLog, Ended
from service.api.spans import attributes_of, stages
from service.logs.lines import about
from service.tracing import Attributes, posting

if TYPE_CHECKING:
    from service.api.middleware import Trace  # which imports this module
    from service.otlp import RequestSpan, Tracing  # only where tracing is on

METHODS = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"}


def method_of(scope: Scope) -> str:
    """Methods that are none are the caller's own words."""
    return scope["method"] if scope["method"] in METHODS else "_OTHER"


class Observer:
    """Told by the outermost layer when a request begins and ends."""

    def __init__(self, access: AccessLog | None = None, tracing: "Tracing | None" = None) -> None:
        self.access, self.tracing = access, tracing
        self.under_way = 0
        self.answered = 0
        self.aborted = 0  # cancelled before their answer was whole
        self.drained_by: float | None = None  # perf_counter until which a stopping server may take

    def begin(self, scope: Scope, trace: "Trace") -> "RequestSpan | None":
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
        self, scope: Scope, trace: "Trace", span: "RequestSpan | None", route: str, status: int, seconds: float
    ) -> None:
        self.under_way -= 1
        if isinstance(sys.exception(), asyncio.CancelledError):
            self.aborted += 1
        else:
            self.answered += 1
        if self.access is None and span is None:
            return
        client = scope.get("client")
        ended = Ended(
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
            failure = (trace.error_type or str(status)) if ended.failed else None
            span.end(name, attributes(scope, trace, ended), parts, failure)


def attributes(scope: Scope, trace: "Trace", ended: Ended) -> Attributes:
    """By the semantic conventions for HTTP servers, but for `url.path`: it may name a domain or a job."""
    found: dict[str, str | int | float | bool] = {
        "http.route": ended.route,
        "http.response.status_code": ended.status,
        "url.scheme": scope.get("scheme", "http"),
        "network.protocol.version": scope.get("http_version", ""),
        "isosim.request_id": trace.request_id,
    }
    if ended.client:
        found["client.address"] = ended.client
    if ended.caller:
        found["isosim.caller"] = ended.caller
    if trace.error_type:
        found["isosim.error_type"] = trace.error_type
    return found if trace.scored is None else {**found, **attributes_of(trace.scored)}
