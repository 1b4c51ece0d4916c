"""The trace of a request: what its layers and its route note about it, for headers, access log and spans."""

import time
from dataclasses import dataclass, field
from typing import NamedTuple

from starlette.types import Receive

from service.core.encoding.embedding import Embeddings, Timings
from service.core.grants import NOBODY, Grant, Release, nothing
from service.core.scoring.calibration import Calibration
from service.observability.tracing import Attributes, Stage


class ScoringRecord(NamedTuple):
    """The result of a scoring request, as headers, access log and trace report it."""

    calibration: Calibration
    embeddings: Embeddings
    spent: float  # s on calibration
    ended: float  # perf_counter, when that was done


@dataclass
class Trace:
    """What a request leaves behind for its headers; a route fills it in."""

    request_id: str
    started: float  # s, perf_counter
    receive: Receive
    timings: Timings = field(default_factory=Timings)
    headers: dict[str, str] = field(default_factory=dict)
    scored: ScoringRecord | None = None
    error_type: str | None = None  # of the answer, where it is an error
    grant: Grant = NOBODY  # until its key was checked
    release: Release = nothing  # of what it holds of its key's limits
    split_key: str = ""  # by which a split sends requests to one encoder or the other; the id where none was given

    async def caller_left(self) -> None:
        """Returns when the connection is closed; to be awaited after the body was read."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    def as_headers(self) -> list[tuple[bytes, bytes]]:
        """The route's headers and text-embeddings-inference's timings, in milliseconds."""
        timings = self.timings
        return [
            *((name.encode(), value.encode()) for name, value in self.headers.items()),
            (b"x-tokenization-time", b"%.3f" % (timings.tokenization * 1e3)),
            (b"x-queue-time", b"%.3f" % (timings.queue * 1e3)),
            (b"x-inference-time", b"%.3f" % (timings.inference * 1e3)),
            (b"x-compute-tokens", b"%d" % timings.tokens),
            (b"x-total-time", b"%.3f" % ((time.perf_counter() - self.started) * 1e3)),
        ]


def stages(scored: ScoringRecord, started: float) -> list[Stage]:
    """The parts of a request that began at `started`, in order.

    Laid end to end up to the calibration. Of several texts each part is the longest one's, so that together they may
    be longer than the request was: none begins before it.
    """
    timings, lookup = scored.embeddings.timings, scored.embeddings.lookup
    parts: list[tuple[str, float, Attributes]] = [
        ("calibration", scored.spent, {"isosim.method": scored.calibration.method})
    ]
    if lookup.joined or lookup.computed:
        parts += [
            ("inference", timings.inference, {"isosim.tokens": timings.tokens}),
            ("queue", timings.queue, {}),
            ("tokenize", timings.tokenization, {}),
        ]
    counts = {"memory_hits": lookup.memory_hits, "redis_hits": lookup.shared_hits}
    counts |= {"joined": lookup.joined, "computed": lookup.computed}
    parts.append(("cache", timings.cache, {f"isosim.cache.{name}": count for name, count in counts.items()}))
    parts_of_request: list[Stage] = []
    end = scored.ended
    for name, seconds, attributes in parts:
        begin = max(started, end - seconds)
        parts_of_request.append(Stage(name, begin, end, attributes))
        end = begin
    return parts_of_request[::-1]


def attributes_of(scored: ScoringRecord) -> Attributes:
    return {
        "isosim.domain": scored.calibration.domain,
        "isosim.version": scored.calibration.version,
        "isosim.texts": len(scored.embeddings.rows),
    }
