"""Whether and when a request is sent again. No clock, no sleep and no HTTP library of its own."""

from __future__ import annotations

import random as chance
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from enum import Enum

from .errors import ApiError, ConnectionFailed, ConnectionLost, IsosimError, TimedOut

RETRIED = {408, 429, 502, 503, 504}
REFUSED = {429, 503}  # the server's own word that nothing was carried out; 502 and 504 are a proxy's guess


class Repeat(Enum):
    """What sending a request twice may do."""

    SAFE = "the same as sending it once"
    IF_REFUSED = "harm, unless the first one was certainly not carried out"
    NEVER = "harm, or nothing of use"


@dataclass(frozen=True)
class Retries:
    """How patient a client is. `Retries(times=0)` is not at all.

    The n-th pause is what the server asks for in `Retry-After`, plus a random share of `first` x 2^n, at most `most`:
    so callers that were refused together do not come back together. All defaults are unmeasured.

    Example:
        >>> from isosim_client import Client, Retries
        >>> patient = Client("http://127.0.0.1:8000", retries=Retries(times=10, budget=300.0))
        >>> patient.ready()
        True
    """

    times: int = 5  # beyond the first
    budget: float = 60.0  # s from the first sending; what would end later is not begun
    first: float = 0.5  # s
    most: float = 8.0  # s
    random: Callable[[], float] = chance.random  # 0-1
    clock: Callable[[], float] = time.monotonic  # s


class Tries:
    """One request's share of a client's patience."""

    def __init__(self, retries: Retries) -> None:
        self.retries, self.failed, self._started = retries, 0, retries.clock()

    @property
    def remaining(self) -> float:
        """Seconds of the budget."""
        return self.retries.budget - (self.retries.clock() - self._started)

    def timeout(self, usual: float) -> float:
        """Seconds for the next sending: the first is given its time, the others what is left."""
        return usual if not self.failed else max(min(usual, self.remaining), 0.001)

    def pause_after(self, error: IsosimError, repeat: Repeat) -> float | None:
        """Seconds to wait before the next sending; None where there shall be none."""
        if self.failed >= self.retries.times or not may_heal(error, repeat):
            return None
        backoff = min(self.retries.most, self.retries.first * 2.0**self.failed)
        asked = error.retry_after if isinstance(error, ApiError) else None
        pause = (asked or 0.0) + backoff * self.retries.random()
        if pause >= self.remaining:
            return None
        self.failed += 1
        return pause


def may_heal(error: IsosimError, repeat: Repeat) -> bool:
    if repeat is Repeat.NEVER:
        return False
    if isinstance(error, ApiError):
        statuses = RETRIED if repeat is Repeat.SAFE else REFUSED
        return error.should_retry and error.status in statuses
    if isinstance(error, ConnectionFailed):
        return True
    return isinstance(error, ConnectionLost | TimedOut) and repeat is Repeat.SAFE


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds asked for by `Retry-After`, given in seconds or as a date; None where there is none to be understood."""
    given = headers.get("retry-after", "").strip()
    try:
        seconds = float(given)
    except ValueError:
        until = http_date(given)
        if until is None:
            return None
        now = http_date(headers.get("date", "")) or datetime.now(timezone.utc)  # the server's clock, if it says it
        seconds = (until - now).total_seconds()
    return seconds if 0 <= seconds < float("inf") else None


def http_date(value: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(value)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)
