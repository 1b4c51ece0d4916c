"""What is recorded of a request: for its response headers, the access log, and its span."""

import asyncio
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from starlette.types import Scope

from isosim import CONTRACT
from isosim.access.grants import NOBODY, Grant
from isosim.encoders.embedding import Embeddings
from isosim.errors import Forbidden, IsosimError
from isosim.observability.logs import Facts, about, told
from isosim.scoring.calibration import Calibration
from isosim.scoring.similarity import Scores

if TYPE_CHECKING:
    from isosim.observability.otlp import RequestSpan, Tracing

LOGGER = "isosim.access"
SLOW = 1.0  # a request that takes this many seconds is logged as slow
METHODS = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"}
# Lets a client check whether it supports the version of the server's HTTP contract.
CONTRACT_HEADER = (b"x-isosim-contract", CONTRACT.encode())
UNREADABLE = (b"x-isosim-flags", b"unreadable")
NOTHING_COMPUTED = [
    (b"x-tokenization-time", b"0.000"),
    (b"x-queue-time", b"0.000"),
    (b"x-inference-time", b"0.000"),
    (b"x-compute-tokens", b"0"),
]


def unwatched(_: Callable[[], None]) -> Callable[[], object]:
    """In place of `GuardedProtocol.watch`, with another server than ours."""
    return lambda: None


@dataclass(slots=True)
class Trace:
    """One request: what the middleware and the route that answers record of it.

    `calibration`, `embeddings` and `scores` are set when a scoring request has its scores or vectors. Headers, access
    log and spans then tell of them.
    """

    request_id: str
    started: float  # time.perf_counter() at the start
    # From server/guard.py: sends status, headers and body of an answer in one piece; returns False if nothing was sent.
    answer: Callable[[int, list[tuple[bytes, bytes]], bytes], bool] | None = None
    watch: Callable[[Callable[[], None]], Callable[[], object]] = unwatched  # see `GuardedProtocol.watch`
    probe: bool = False  # whether the route is for probes and scrapers (see `Policy`)
    headers: dict[str, str] = field(default_factory=dict)  # the route's own response headers
    grant: Grant = NOBODY  # NOBODY until the key is checked
    largest: int = 0  # maximum size of the body, in bytes
    received: int = 0  # bytes of the body that were read
    calibration: Calibration | None = None
    embeddings: Embeddings | None = None
    scores: Scores | None = None  # None: the answer has vectors
    calibrating: float = 0.0  # seconds that applying the calibration took
    status: int = 500
    answering: bool = False  # whether the answer has begun
    error_type: str | None = None  # None: the answer is not an error
    cause: Exception | None = None  # exception behind a 403, 424 or 5xx, for the log
    span: "RequestSpan | None" = None  # None: not traced

    @property
    def unreadable(self) -> bool:
        """Whether the encoder knows too few words of a text, so that a score or a vector of the answer means nothing.

        Two texts that differ only in unknown words make it true for scores alone."""
        if self.scores is not None and self.scores.unreadable is not None:
            return True
        return self.embeddings is not None and any(text.unreadable for text in self.embeddings.texts)

    def as_headers(self) -> list[tuple[bytes, bytes]]:
        """Response headers: request id; contract version; domain, version and encoder of a scoring request; the route's
        own headers; and timings in milliseconds under text-embeddings-inference's names."""
        headers = [(b"x-request-id", self.request_id.encode()), CONTRACT_HEADER]
        if self.calibration is not None:
            headers += self.calibration.origin
            if self.unreadable:
                headers.append(UNREADABLE)
        if self.headers:
            headers += [(name.encode(), value.encode()) for name, value in self.headers.items()]
        made = self.embeddings
        headers += NOTHING_COMPUTED if made is None or not made.inference else [
            (b"x-tokenization-time", b"%.3f" % (made.tokenization * 1e3)),
            (b"x-queue-time", b"%.3f" % (made.queue * 1e3)),
            (b"x-inference-time", b"%.3f" % (made.inference * 1e3)),
            (b"x-compute-tokens", b"%d" % made.tokens),
        ]  # fmt: skip
        headers.append((b"x-total-time", b"%.3f" % ((time.perf_counter() - self.started) * 1e3)))
        return headers

    def facts(self, scope: Scope, route: str, seconds: float) -> dict[str, Any]:
        """What the access log and the span tell of the request: neither its path, which may name a domain or job, nor
        its texts, nor its key, but the name of the key; of scores and vectors the duration of each stage."""
        facts = {"method": method_of(scope), "route": route, "status": self.status, "duration_ms": ms(seconds)}
        if self.error_type is not None:
            facts["error_type"] = self.error_type
            if isinstance(self.cause, Forbidden) and self.cause.domain is not None:
                facts["domain"] = self.cause.domain
        calibration, made = self.calibration, self.embeddings
        if calibration is not None and made is not None:
            facts |= {
                "domain": calibration.domain,
                "version": calibration.version,
                "texts": len(made.rows),
                "tokens": made.tokens,
                "memory_hits": made.memory_hits,
                "redis_hits": made.shared_hits,
                "cache_ms": ms(made.cache),
                "tokenization_ms": ms(made.tokenization),
                "queue_ms": ms(made.queue),
                "inference_ms": ms(made.inference),
                "calibration_ms": ms(self.calibrating),
            }
            # Number of texts that another request was computing; only that request's log entry counts their tokens.
            if made.joined:
                facts["joined"] = made.joined
        if self.grant.name:
            facts["caller"] = self.grant.name
        client = scope.get("client")
        if client:
            facts["client"] = client[0]
        return facts


def method_of(scope: Scope) -> str:
    """The request's method; unknown methods, which callers may invent, are logged as `_OTHER`."""
    return scope["method"] if scope["method"] in METHODS else "_OTHER"


def ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


Write = Callable[[str, str, str, Facts], None]  # writes a line: level, logger, message, facts


class Observer:
    """Logs and traces requests; the middleware calls it when a request begins and ends.

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
        self.aborted = 0  # number of requests cancelled before the answer was complete

    def begin(self, scope: Scope, trace: Trace) -> None:
        self.under_way += 1
        facts = {"request_id": trace.request_id}
        if self.tracing is not None and not trace.probe:
            trace.span = self.tracing.request(method_of(scope), scope["headers"], trace.started)
            facts |= trace.span.ids
        about.set(facts)

    def end(self, scope: Scope, trace: Trace, route: str, seconds: float) -> None:
        self.under_way -= 1
        self.aborted += isinstance(sys.exception(), asyncio.CancelledError)
        failed = trace.status >= 500 or trace.status == 424
        logged = self.write is not None and (failed or (seconds >= self.least and not trace.probe))
        if not logged and trace.span is None:
            return
        facts = trace.facts(scope, route, seconds)
        if trace.span is not None:
            # By OpenTelemetry's conventions, 4xx is not a failure of the server.
            failure = (trace.error_type or str(trace.status)) if trace.status >= 500 else None
            about_it = facts | {"request_id": trace.request_id}
            trace.span.end(f"{facts['method']} {route}", about_it, failure)
        if logged and self.write is not None:
            if failed and trace.cause is not None:
                facts |= told(trace.cause)
                if isinstance(trace.cause, IsosimError):  # its type and message say where it comes from
                    del facts["stack"]
            level = "error" if failed and not trace.probe else "info"
            self.write(level, LOGGER, f"{facts['method']} {route} {trace.status}", facts)
