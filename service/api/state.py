"""What lives as long as the server does, and how a route reaches it."""

import asyncio
import heapq
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, TypeVar

from fastapi import Depends, Request

from service.adapters.domains.store import DomainStore
from service.adapters.jobs.store import JobStore
from service.adapters.key_file import Keys
from service.api.access_log import Observer
from service.core.errors import Overloaded
from service.core.grants import Grant, Limits
from service.core.jobs.job import JobRunner
from service.core.scoring.drift import DriftMonitor
from service.core.scoring.registry import DEFAULT
from service.core.wording import nearest
from service.migration.encoders import Encoders
from service.migration.shadow import Shadow
from service.observability.metrics import Metrics
from service.settings import Settings

T = TypeVar("T")


THREADS = 2  # each keeps a core busy with files and JSON, which the event loop needs too


MOST_KNOWN = 20_000  # versions whose date is kept; some 4 MB


MOST_ASKED = 32  # listings of a key at a time: each waits for its turn, also when its caller has left


DOMAINS_A_TEXT = 10  # so many are read in the time of a text: 0.2 ms each with their versions (loadtest/many.py)


class Phase(Enum):
    """Of a server's life, in this order."""

    STARTING = "starting"  # nothing is answered but probes and metrics
    SERVING = "serving"
    DRAINING = "draining"  # no longer ready, so that callers are led elsewhere; who comes all the same is served
    STOPPING = "stopping"  # new work is refused, what is in flight is finished


MOST_NAMES = 1000  # that are remembered for suggestions: more would make an error costly
FRESH = 30.0  # s that they are: the store is listed once in this time, however many unknown names are asked for
PATIENCE = 0.25  # s that an error waits for that listing; without it there is no suggestion
MOST_ALIKE = 64  # names that are compared letter by letter, 20 µs each
CLOSE = 0.7  # difflib's ratio of a name that is suggested: `ticket` and `tickets` have 0.92


class Listings:
    """Scoring, promotion and metrics use other threads and never wait for a listing; nor does one key for another's."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "listings")
        self.created: dict[tuple[str, int], int] = {}  # when versions were made, s since 1970
        self._turns: dict[str, asyncio.Lock] = {}  # by the keys' ids: as many as the file has held
        self._asked: Counter[str] = Counter()  # by the keys' ids: reads that wait or are under way

        self._names: list[str] = []  # of the store's first domains, for suggestions
        self._listed = -FRESH  # s, monotonic: when they were listed
        self._listing: asyncio.Future[list[str]] | None = None  # under way

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

    async def nearest(self, domain: str, grant: Grant, names: Callable[[], Iterable[str]]) -> str | None:
        """The domain of the key's that an unknown name most likely means. `names` lists the store's, sorted."""
        if self._listing is None and time.monotonic() - self._listed >= FRESH:
            self._listing = asyncio.get_running_loop().run_in_executor(
                self._threads, lambda: list(itertools.islice(names(), MOST_NAMES))
            )
            self._listing.add_done_callback(self._remember)
        if self._listing is not None:
            await asyncio.wait([self._listing], timeout=PATIENCE)
        alike = [
            known
            for known in (DEFAULT, *self._names)
            if (known[:2] == domain[:2] or known[-3:] == domain[-3:]) and known != domain and grant.may_use(known)
        ]
        closest = heapq.nlargest(MOST_ALIKE, alike, key=lambda known: alike_letters(known, domain))
        return nearest(domain, closest, CLOSE)

    def _remember(self, listing: asyncio.Future[list[str]]) -> None:
        """Takes the names over; a store that cannot be listed is not asked again at once."""
        self._listing, self._listed = None, time.monotonic()
        if not listing.cancelled() and listing.exception() is None:
            self._names = listing.result()


def alike_letters(one: str, other: str) -> int:
    """Letters that two names begin with in common."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


async def pay_for(limits: Limits, grant: Grant, domains: int) -> None:
    """Charges a listing before it is read; beyond the text that every request is counted as."""
    await limits.owe(grant, domains // DOMAINS_A_TEXT)


@dataclass
class Service:
    """Built by the composition root. `phase`, the two counts and the locks are all that changes."""

    settings: Settings
    metrics: Metrics
    keys: Keys
    limits: Limits
    encoders: Encoders
    shadow: Shadow
    domains: DomainStore
    jobs: JobStore
    runner: JobRunner
    drift: DriftMonitor
    observer: Observer
    listings: Listings
    phase: Phase = Phase.STARTING
    event_streams: int = 0  # open now
    file_readers: int = 0  # child processes that read posted files now
    tokenizing: asyncio.Lock = field(default_factory=asyncio.Lock)  # for show: it must not take the threads of scoring
    admission: asyncio.Lock = field(default_factory=asyncio.Lock)  # of calibrations: counted and taken one by one

    @property
    def ready(self) -> bool:
        """Whether callers should be sent here."""
        return self.phase is Phase.SERVING and self.encoders.fault is None

    @property
    def taking_work(self) -> bool:
        return self.phase in (Phase.SERVING, Phase.DRAINING)

    @property
    def leaving(self) -> bool:
        """Whether an answer should be a connection's last."""
        return self.phase in (Phase.DRAINING, Phase.STOPPING)


def service_of(request: Request) -> Service:
    service: Service = request.scope["state"]["service"]
    return service


async def provide(request: Request) -> Service:
    return service_of(request)


ServiceDep = Annotated[Service, Depends(provide)]
