"""A line a request: what was asked, how it ended, where the time went. No path, no query, no text, no key."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from service.api.spans import Scored
from service.logs.lines import Facts

if TYPE_CHECKING:
    from service.api.middleware import Trace  # which imports this module

PROBES = {"/livez", "/readyz", "/metrics", "/health", "/v2/health/live", "/v2/health/ready"}
LOGGER = "isosim.access"


class Ended(NamedTuple):
    """How a request ended."""

    method: str
    route: str  # template: a path may hold the name of a domain or a job, a query anything
    status: int
    seconds: float
    client: str | None  # address
    caller: str | None  # the name of the key, never the key

    @property
    def failed(self) -> bool:
        return self.status >= 500


class AccessLog:
    """A line for each request, or only for those that were slow or failed for a reason of ours."""

    def __init__(self, write: Callable[[str, str, Facts], None], which: Literal["all", "slow"], slow: float) -> None:
        self.write = write
        self.least = slow if which == "slow" else 0.0  # s

    def __call__(self, trace: "Trace", ended: Ended) -> None:
        wanted = ended.failed or (ended.seconds >= self.least and ended.route not in PROBES)
        if not wanted:  # a probe that passes is of every few seconds, and asks nothing of anybody
            return
        facts: dict[str, Any] = {
            "method": ended.method,
            "route": ended.route,
            "status": ended.status,
            "duration_ms": milliseconds(ended.seconds),
        }
        if trace.error_type is not None:
            facts["error_type"] = trace.error_type
        if trace.scored is not None:
            facts |= scoring(trace.scored)
        if ended.caller:
            facts["caller"] = ended.caller
        if ended.client:
            facts["client"] = ended.client
        self.write(LOGGER, f"{ended.method} {ended.route} {ended.status}", facts)


def scoring(scored: Scored) -> dict[str, Any]:
    """Who answered, where the vectors came from, and what each stage took."""
    embedded = scored.embedded
    timings, lookup = embedded.timings, embedded.lookup
    return {
        "domain": scored.calibration.domain,
        "version": scored.calibration.version,
        "texts": len(embedded.rows),
        "tokens": timings.tokens,
        "memory_hits": lookup.memory_hits,
        "redis_hits": lookup.shared_hits,
        "cache_ms": milliseconds(timings.cache),
        "tokenization_ms": milliseconds(timings.tokenization),
        "queue_ms": milliseconds(timings.queue),
        "inference_ms": milliseconds(timings.inference),
        "calibration_ms": milliseconds(scored.spent),
    }


def milliseconds(seconds: float) -> float:
    return round(seconds * 1e3, 3)
