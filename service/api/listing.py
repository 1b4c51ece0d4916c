"""Reads of many domains at once: in threads of their own, in turns, and paid for by the key that asks."""

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from service.core.errors import Overloaded
from service.core.limits.grants import Grant
from service.core.limits.rate_limit import Limits

T = TypeVar("T")

THREADS = 2  # each keeps a core busy with files and JSON, which the event loop needs too
MOST_KNOWN = 20_000  # versions whose date is kept; some 4 MB
MOST_ASKED = 32  # listings of a key at a time: each waits for its turn, also when its caller has left
DOMAINS_A_TEXT = 10  # so many are read in the time of a text: 0.2 ms each with their versions (loadtest/many.py)


class Listings:
    """Scoring, promotion and metrics use other threads and never wait for a listing; nor does one key for another's."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "listings")
        self.created: dict[tuple[str, int], int] = {}  # when versions were made, s since 1970
        self._turns: dict[str, asyncio.Lock] = {}  # by the keys' ids: as many as the file has held
        self._asked: Counter[str] = Counter()  # by the keys' ids: reads that wait or are under way

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def begin(self, grant: Grant, function: Callable[..., T], *arguments: object) -> T:
        """The first `read` of a listing. Raises Overloaded where too many of the key are waiting."""
        if self._asked[grant.id] >= MOST_ASKED:
            raise Overloaded(f"{MOST_ASKED} listings are waiting or being read for this caller; ask again later", 5)
        return await self.read(grant, function, *arguments)

    async def read(self, grant: Grant, function: Callable[..., T], *arguments: object) -> T:
        """One call of a key at a time; its others wait for it, whatever other keys ask."""
        self._asked[grant.id] += 1
        try:
            async with self._turns.setdefault(grant.id, asyncio.Lock()):
                return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)
        finally:
            self._asked[grant.id] -= 1


async def pay_for(limits: Limits, grant: Grant, domains: int) -> None:
    """Charges a listing before it is read; beyond the text that every request is counted as."""
    await limits.owe(grant, domains // DOMAINS_A_TEXT)
