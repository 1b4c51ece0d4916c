"""Facts about one request, which middleware and route record for response headers, access log and spans."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from isosim import CONTRACT
from isosim.access.grants import NOBODY, Grant
from isosim.observability.tracing import Attributes, Stage
from isosim.scoring.similarity import Scored


@dataclass(slots=True)
class Trace:
    """Facts about one request, recorded by the middleware and by the route that answers."""

    request_id: str
    started: float  # time.perf_counter() at the start
    # Arranges that the given function is called when the connection closes; what it returns cancels this.
    watch: Callable[[Callable[[], None]], Callable[[], object]] = lambda _: lambda: None
    probe: bool = False  # whether the route is for probes and scrapers (see `Policy`)
    headers: dict[str, str] = field(default_factory=dict)  # the route's own response headers
    scored: Scored | None = None
    error_type: str | None = None  # None: the answer is not an error
    cause: Exception | None = None  # exception behind a 403, 424 or 5xx, for the log
    grant: Grant = NOBODY  # NOBODY until the key is checked
    received: int = 0  # bytes of the body that were read

    def as_headers(self) -> list[tuple[bytes, bytes]]:
        """Response headers: request id; contract version; domain, version and encoder of a scoring request; the route's
        own headers; and timings in milliseconds under text-embeddings-inference's names."""
        scored = self.scored
        own = [(name.encode(), value.encode()) for name, value in self.headers.items()] if self.headers else ()
        return [
            (b"x-request-id", self.request_id.encode()),
            CONTRACT_HEADER,
            *(() if scored is None else scored.calibration.origin),
            *(UNREADABLE if scored is not None and scored.unreadable else ()),
            *own,
            *(NOTHING_COMPUTED if scored is None or not scored.embeddings.work.inference else timed(scored)),
            (b"x-total-time", b"%.3f" % ((time.perf_counter() - self.started) * 1e3)),
        ]


# Lets a client check whether it supports the version of the server's HTTP contract.
CONTRACT_HEADER = (b"x-isosim-contract", CONTRACT.encode())
UNREADABLE = [(b"x-isosim-flags", b"unreadable")]
NOTHING_COMPUTED = [
    (b"x-tokenization-time", b"0.000"),
    (b"x-queue-time", b"0.000"),
    (b"x-inference-time", b"0.000"),
    (b"x-compute-tokens", b"0"),
]


def timed(scored: Scored) -> list[tuple[bytes, bytes]]:
    work = scored.embeddings.work
    return [
        (b"x-tokenization-time", b"%.3f" % (work.tokenization * 1e3)),
        (b"x-queue-time", b"%.3f" % (work.queue * 1e3)),
        (b"x-inference-time", b"%.3f" % (work.inference * 1e3)),
        (b"x-compute-tokens", b"%d" % work.tokens),
    ]


def stages(scored: Scored, started: float) -> list[Stage]:
    """Stages of a request that began at `started` (in seconds of perf_counter), in order of time.

    The durations of the stages are known, but not their starts. The last stage, calibration, ends at `scored.ended`.
    Each earlier stage is assumed to end when the next stage begins.

    The durations may add up to more than the request took: each is the duration for the slowest text, which may be a
    different text in each stage. A stage that would begin before `started` is therefore shortened.
    """
    work = scored.embeddings.work
    parts: list[tuple[str, float, Attributes]] = [
        ("calibration", scored.spent, {"isosim.method": scored.calibration.method})
    ]
    if work.joined or work.computed:
        parts += [
            ("inference", work.inference, {"isosim.tokens": work.tokens}),
            ("queue", work.queue, {}),
            ("tokenize", work.tokenization, {}),
        ]
    counts = {"memory_hits": work.memory_hits, "redis_hits": work.shared_hits}
    counts |= {"joined": work.joined, "computed": work.computed}
    parts.append(("cache", work.cache, {f"isosim.cache.{name}": count for name, count in counts.items()}))
    parts_of_request: list[Stage] = []
    end = scored.ended
    for name, seconds, attributes in parts:
        begin = max(started, end - seconds)
        parts_of_request.append(Stage(name, begin, end, attributes))
        end = begin
    return parts_of_request[::-1]
