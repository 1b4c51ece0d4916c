"""Decides whether and when a request is retried. This module itself neither sleeps nor sends anything."""

from __future__ import annotations

import random as chance
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from .errors import ApiError, ConnectionFailed, ConnectionLost, IsosimError, TimedOut

RETRIED = {408, 429, 502, 503, 504}  # statuses of errors that may be temporary
# With these statuses, the server says that it did nothing. 502 and 504 come from a proxy, which does not know what the
# server did.
REFUSED = {429, 503}


class Repeat(Enum):
    """The effect of sending a request twice."""

    SAFE = "the same as sending it once"
    IF_REFUSED = "harmful, unless the first request was certainly not carried out"
    NEVER = "harmful or useless"


@dataclass(frozen=True)
class Retries:
    """How often and how long a client retries requests. `Retries(times=0)` disables retries.

    The pause before a retry is the server's `Retry-After` plus a random number of seconds. With the defaults, the
    random number is at most 0.5 s before the first retry (`first`). For later retries, the maximum is 1 s, 2 s, 4 s
    and 8 s (`most`). Because of the random number, refused clients do not all return at the same time. The defaults
    are unmeasured.
    """

    times: int = 5  # retries after the first attempt
    budget: float = 60.0  # seconds after the start of the first attempt; no retry begins later
    first: float = 0.5  # seconds; maximum of the random pause before the first retry, doubled for each further retry
    most: float = 8.0  # seconds; the random pause is never longer
    random: Callable[[], float] = chance.random  # returns the random share, 0-1
    clock: Callable[[], float] = time.monotonic  # returns seconds


def pause_after(error: IsosimError, retries: Retries, failed: int) -> float:
    """Seconds to wait before the next attempt, after `failed` retries."""
    asked = error.retry_after if isinstance(error, ApiError) else None
    return (asked or 0.0) + min(retries.most, retries.first * 2.0**failed) * retries.random()


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
    """Seconds to wait according to the header `Retry-After`; None if it is missing or no number."""
    given = headers.get("retry-after", "")
    return float(given) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", given) else None
