"""Facts about one request, which middleware and route record for response headers, access log and spans."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from isosim import CONTRACT
from isosim.access.grants import NOBODY, Grant
from isosim.encoders.embedding import Embeddings
from isosim.scoring.calibration import Calibration
from isosim.scoring.similarity import Scores


@dataclass(slots=True)
class Trace:
    """One request: what the middleware and the route that answers record of it.

    `calibration`, `embeddings` and `scores` are set when a scoring request has its scores or vectors. Headers, access
    log and spans then tell of them.
    """

    request_id: str
    started: float  # time.perf_counter() at the start
    # Arranges that the given function is called when the connection closes; what it returns cancels this.
    watch: Callable[[Callable[[], None]], Callable[[], object]] = lambda _: lambda: None
    probe: bool = False  # whether the route is for probes and scrapers (see `Policy`)
    headers: dict[str, str] = field(default_factory=dict)  # the route's own response headers
    grant: Grant = NOBODY  # NOBODY until the key is checked
    largest: int = 0  # maximum size of the body, in bytes
    received: int = 0  # bytes of the body that were read
    calibration: Calibration | None = None
    embeddings: Embeddings | None = None
    scores: Scores | None = None  # None: the answer has vectors
    calibrating: float = 0.0  # seconds that applying the calibration took
    calibrated: float = 0.0  # time.perf_counter() when the calibration had been applied
    status: int = 500
    answering: bool = False  # whether the answer has begun
    error_type: str | None = None  # None: the answer is not an error
    cause: Exception | None = None  # exception behind a 403, 424 or 5xx, for the log

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


# Lets a client check whether it supports the version of the server's HTTP contract.
CONTRACT_HEADER = (b"x-isosim-contract", CONTRACT.encode())
UNREADABLE = (b"x-isosim-flags", b"unreadable")
NOTHING_COMPUTED = [
    (b"x-tokenization-time", b"0.000"),
    (b"x-queue-time", b"0.000"),
    (b"x-inference-time", b"0.000"),
    (b"x-compute-tokens", b"0"),
]
