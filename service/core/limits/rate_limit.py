"""How much a key may ask for: a token bucket of texts, and a count of requests under way."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from service.core.errors import Overloaded
from service.core.limits.grants import Grant, Rate

Release = Callable[[], None]
Limit = Literal["rate", "concurrent"]


def nothing() -> None:
    """The release of a request that holds nothing."""


class Limits(Protocol):
    """Counts what a key uses: in this process, or in Redis for all of them."""

    async def admit(self, grant: Grant, texts: int) -> Release:
        """Takes the texts out of the key's rate and counts the request; the release ends its count.

        Raises:
            Overloaded: the key has used up its rate, or has too many requests under way; nothing was taken.
        """

    async def owe(self, grant: Grant, texts: int) -> None:
        """Takes texts whatever the key has left; they are paid off before its next request. Negative: gives back.

        For what a request turns out to cost once it has been admitted.
        """


def too_fast(rate: Rate, wait: float) -> Overloaded:
    seconds = max(1, math.ceil(wait))
    return Overloaded(f"the API key's rate of {rate} is used up; try again in {seconds} s", retry_after=seconds)


def too_many(concurrent: int) -> Overloaded:
    requests = f"{concurrent} request{'s' * (concurrent > 1)}"
    return Overloaded(f"the API key has {requests} under way, as many as it may have")


class TokenBucket:
    """Holds one period's texts and fills again at the key's rate.

    A request of more texts than it ever holds passes when it is full, and is paid off afterwards: every request of
    a permitted size can be answered, and the mean rate still holds.
    """

    def __init__(self, rate: Rate, now: float) -> None:
        self.rate, self.tokens, self.at = rate, float(rate.texts), now

    def take(self, texts: int, now: float) -> float:
        """0 where the texts were taken, else the seconds until they could be."""
        capacity, per_second = self.rate.texts, self.rate.per_second
        self.fill(now)
        missing = min(texts, capacity) - self.tokens
        if missing > 1e-9:  # what rounding leaves of a bucket that is full again
            return missing / per_second
        self.tokens -= texts
        return 0.0

    def owe(self, texts: int, now: float) -> None:
        """Takes the texts whether or not they are there."""
        self.fill(now)
        self.tokens = min(self.rate.texts, self.tokens - texts)

    def fill(self, now: float) -> None:
        """With what the time since the last look has earned."""
        self.tokens = min(self.rate.texts, self.tokens + max(0.0, now - self.at) * self.rate.per_second)
        self.at = now


@dataclass
class Usage:
    """What one key uses now."""

    bucket: TokenBucket | None = None
    under_way: set[object] = field(default_factory=set)


class LocalLimits:
    """The limits of one process. Lives on one event loop; never waits."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, on_refused: Callable[[Limit], None] = lambda _: None
    ) -> None:
        self.clock, self.on_refused = clock, on_refused
        self._usage: dict[str, Usage] = {}  # by the keys' ids: as many as the file has held

    async def admit(self, grant: Grant, texts: int) -> Release:
        return self.take(grant, texts) if grant.limited else nothing

    async def owe(self, grant: Grant, texts: int) -> None:
        if grant.rate is not None and texts:
            self._bucket(self._usage.setdefault(grant.id, Usage()), grant.rate).owe(texts, self.clock())

    def _bucket(self, usage: Usage, rate: Rate) -> TokenBucket:
        if usage.bucket is None or usage.bucket.rate != rate:  # the file gives the key another rate now
            usage.bucket = TokenBucket(rate, self.clock())
        return usage.bucket

    def take(self, grant: Grant, texts: int) -> Release:
        """`admit` for callers that cannot wait."""
        usage = self._usage.setdefault(grant.id, Usage())
        if grant.concurrent is not None and len(usage.under_way) >= grant.concurrent:
            self.on_refused("concurrent")
            raise too_many(grant.concurrent)
        if grant.rate is not None:
            wait = self._bucket(usage, grant.rate).take(texts, self.clock())
            if wait:
                self.on_refused("rate")
                raise too_fast(grant.rate, wait)
        if grant.concurrent is None:
            return nothing
        request = object()
        usage.under_way.add(request)
        return lambda: usage.under_way.discard(request)
