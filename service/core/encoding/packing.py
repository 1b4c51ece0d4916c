"""Which of the waiting texts share a batch."""

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from service.core.encoding.texts import Pooled, Text, Tokens
from service.core.errors import IsosimError

MIN_FILL = 0.7  # share of a batch that must be real tokens before padding makes a second batch cheaper (unmeasured)
WINDOW = 1024  # texts looked at for a batch, oldest first
LEAD = 0.25  # s: nobody is overtaken by a text that arrived so much later


@dataclass(eq=False, slots=True)
class PendingText:
    """One text being encoded, and everyone waiting for it. Touched by the event loop, except where marked."""

    key: bytes
    text: Text
    waiters: set["Waiter"] = field(default_factory=set)
    result: Pooled | None = None
    error: IsosimError | None = None
    arrived: float = 0.0  # s, perf_counter
    size: int = 0  # characters, and HANDLING: what encoding it costs, before its tokens are known
    tokens: Tokens | None = None  # written by the tokenizing thread
    length: int = 0  # tokens, likewise
    tokenization: float = 0.0  # s, likewise
    queue: float = 0.0  # s, written by the running thread
    inference: float = 0.0  # s, likewise


@dataclass(eq=False, slots=True)
class Waiter:
    """One caller's wait for some works."""

    future: "asyncio.Future[None]"
    pending_texts: set[PendingText]


def pack(waiting: Sequence[PendingText], max_tokens: int, max_texts: int) -> list[PendingText]:
    """The oldest work and those nearest to it in length, within the budget of padded tokens.

    `waiting` is in order of arrival. A single text longer than the budget makes a batch of its own.
    """
    oldest = waiting[0]
    window = [pending for pending in waiting[:WINDOW] if pending.arrived <= oldest.arrived + LEAD]
    by_length = sorted(window, key=attrgetter("length"))
    low = bisect_left(by_length, oldest.length, key=attrgetter("length"))
    while by_length[low] is not oldest:
        low += 1
    high = low + 1  # the batch is by_length[low:high]
    longest, real = max(oldest.length, 1), oldest.length
    while high - low < max_texts:
        shorter = by_length[low - 1].length if low else None
        longer = max(by_length[high].length, 1) if high < len(by_length) else None
        count = high - low + 1
        costs = []  # (padded tokens, fill, side)
        if shorter is not None:
            costs.append((count * longest, (real + shorter) / (count * longest), -1))
        if longer is not None:
            costs.append((count * longer, (real + longer) / (count * longer), 1))
        fitting = [(fill, side) for padded, fill, side in costs if padded <= max_tokens and fill >= MIN_FILL]
        if not fitting:
            break
        _, side = max(fitting)
        if side < 0:
            low -= 1
            real += by_length[low].length
        else:
            longest = by_length[high].length
            real += longest
            high += 1
    return by_length[low:high]
