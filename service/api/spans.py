"""A request's trace, made of what was timed anyway."""

from typing import NamedTuple

from service.core.calibration import Calibration
from service.core.embedding import Embedded
from service.tracing import Attributes, Stage


class Scored(NamedTuple):
    """What a scoring request did."""

    calibration: Calibration
    embedded: Embedded
    spent: float  # s on calibration
    ended: float  # perf_counter, when that was done


def stages(scored: Scored, started: float) -> list[Stage]:
    """The parts of a request that began at `started`, in order.

    Laid end to end up to the calibration. Of several texts each part is the longest one's, so that together they may
    be longer than the request was: none begins before it.
    """
    timings, lookup = scored.embedded.timings, scored.embedded.lookup
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
    found: list[Stage] = []
    end = scored.ended
    for name, seconds, attributes in parts:
        begin = max(started, end - seconds)
        found.append(Stage(name, begin, end, attributes))
        end = begin
    return found[::-1]


def attributes_of(scored: Scored) -> Attributes:
    return {
        "isosim.domain": scored.calibration.domain,
        "isosim.version": scored.calibration.version,
        "isosim.texts": len(scored.embedded.rows),
    }
