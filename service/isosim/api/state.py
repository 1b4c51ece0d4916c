"""Objects that live as long as the server, and the dependency that gives them to routes."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, TypeVar

from fastapi import Depends, Request

from isosim.access.grants import Grant
from isosim.access.key_file import Keys
from isosim.access.limits import Limits
from isosim.api.trace import Observer
from isosim.domains.champions import Champions
from isosim.domains.registry import Registry
from isosim.domains.store import DomainStore
from isosim.encoders.cache import RedisCache
from isosim.encoders.loaded import LoadedEncoder
from isosim.errors import Overloaded, ShareUsed
from isosim.jobs.job import Job
from isosim.jobs.matches import MatchStore
from isosim.jobs.store import JobStore
from isosim.observability.metrics import Metrics
from isosim.scoring.drift import DriftMonitor
from isosim.settings import Settings
from isosim.threads import Pace, StoreCalls, Threads, Turns

T = TypeVar("T")


THREADS = 2  # threads for listings; few, because each may keep a core busy that the event loop needs
# Maximum number of listings per key that wait or run. Without a limit they could pile up, because a listing goes on
# waiting after its client has disconnected.
MOST_ASKED = 32
# Listing this many domains is charged like one text; a domain with versions takes 0.2 ms.
DOMAINS_A_TEXT = 10


JOB_READERS = 8  # reads of jobs' records at a time; a quarter of the calls of the store (threads.py)
# Maximum number of open event streams per process; each reads its job's record several times a second.
MAX_EVENT_STREAMS = 256
# Maximum number of files that a process reads at the same time, because each of them may keep a
# core busy. At most one may be a workbook or Parquet file.
MOST_READERS = 4
MOST_FILES = 24  # each has at most ISOSIM_MAX_CALIBRATION_BYTES, and what is read of it at most twice as many
SHARES = 4  # one API key of several may take 1/SHARES of the queue of jobs and of the event streams


class Phase(Enum):
    """Phases of a server's life, in order."""

    STARTING = "starting"  # only probes and metrics are answered
    SERVING = "serving"
    DRAINING = "draining"  # not ready, so that load balancers use other servers; requests are still served
    STOPPING = "stopping"  # new work is refused, requests in flight finish


class Listings:
    """Reads lists of domains and jobs: few at a time, so that a long listing delays only further listings, and one at a
    time for each API key."""

    def __init__(self, calls: StoreCalls) -> None:
        self._call = Turns(calls, THREADS)
        self._turns: dict[str, Turns] = {}  # by key id: one listing at a time
        self._asked: Counter[str] = Counter()  # by key id: number of its listings that wait or run

    async def __call__(self, grant: Grant, function: Callable[..., T], *arguments: object) -> T:
        """Calls `function` in a thread; calls of the same key run one after the other. Raises ShareUsed if MOST_ASKED
        of them wait or run."""
        if self._asked[grant.id] >= MOST_ASKED:
            raise ShareUsed(f"{MOST_ASKED} listings are waiting or being read for this caller; ask again later", 5)
        self._asked[grant.id] += 1
        try:
            turn = self._turns.setdefault(grant.id, Turns(self._call, 1))
            return await turn(function, *arguments)
        finally:
            self._asked[grant.id] -= 1


class Places:
    """A limited number of places for requests of one kind, in this process."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._taken: Counter[str] = Counter()  # by key id

    def check(self, grant: Grant, share: int, what: str, remedy: str) -> None:
        """Raises Overloaded if all places are taken, ShareUsed if the key has taken `share` of them."""
        mine = self._taken[grant.id]
        if self._taken.total() >= self.most:
            raise Overloaded(f"{self.most} {what}, which is the maximum; {remedy}", retry_after=5)
        if mine >= share:
            raise ShareUsed(f"{mine} {what} for this API key, which is its share of {self.most}; {remedy}", 5)

    @contextmanager
    def taken(self, grant: Grant) -> Iterator[None]:
        self._taken[grant.id] += 1
        try:
            yield
        finally:
            self._taken[grant.id] -= 1
            self._taken += Counter()  # removes the keys without a place


@dataclass
class Service:
    """Parts of the server, built once at its start. Only `phase`, the locks and the counted places change later."""

    settings: Settings
    metrics: Metrics
    keys: Keys
    limits: Limits
    encoder: LoadedEncoder
    registry: Registry
    domains: DomainStore
    champions: Champions
    jobs: JobStore
    results: MatchStore
    drift: DriftMonitor
    redis: RedisCache | None  # vectors shared with other processes
    observer: Observer
    listings: Listings
    hint: Callable[[Job], Awaitable[None]]  # tells workers that there is a new job
    store: StoreCalls  # runs calls of the model store: `await service.store(service.jobs.read, job_id)`
    scoring: Threads  # runs computations of scoring routes and of metrics, which must not wait for the store
    # One thread that reads and writes large JSON: both hold the interpreter's lock (2 MB: 40 ms, 2,048 vectors: 30 ms),
    # so several at once would delay the event loop by their sum.
    large_json: Threads
    loop: asyncio.AbstractEventLoop
    phase: Phase = Phase.STARTING
    champions_current: float | None = None  # time.monotonic() at which all champions in memory last matched the store
    domains_listed: int | None = None  # number of domains in the store, when they were last listed
    store_free: float | None = None  # share of the store's volume that was free when the jobs were last counted
    event_streams: Places = field(default_factory=lambda: Places(MAX_EVENT_STREAMS))  # open event streams of jobs
    file_readers: Places = field(default_factory=lambda: Places(MOST_READERS))  # files that are read
    temporary_files: Places = field(default_factory=lambda: Places(MOST_FILES))  # of requests, also while they arrive
    whole_files: asyncio.Lock = field(default_factory=asyncio.Lock)  # one workbook or Parquet file is read at a time
    scraping: asyncio.Lock = field(default_factory=asyncio.Lock)  # one request for metrics at a time computes them
    pace: Pace = field(default_factory=Pace)  # of requests with many texts, and of large answers
    tokenizing: asyncio.Lock = field(default_factory=asyncio.Lock)  # only one /tokenize at a time, to keep threads free

    def __post_init__(self) -> None:
        # Reads of jobs' records: event streams read theirs several times a second, and must not take all calls.
        self.job_reads = Turns(self.store, JOB_READERS)
        # Looks at results of matches, each of which reads tens of megabytes and fits a curve.
        self.looks = Listings(self.store)

    @property
    def shared(self) -> bool:
        """Whether there are several API keys, so that each may take only a part of what the server can hold."""
        return self.keys.count > 1

    def share(self, whole: int, parts: int = SHARES) -> int:
        """How many of `whole` places one API key may take."""
        return max(1, whole // parts) if self.shared else whole

    @property
    def ready(self) -> bool:
        """Whether load balancers should send requests to this server."""
        return self.phase is Phase.SERVING and self.encoder.fault is None

    @property
    def taking_work(self) -> bool:
        return self.phase in (Phase.SERVING, Phase.DRAINING)

    @property
    def leaving(self) -> bool:
        """Whether each answer should close its connection."""
        return self.phase in (Phase.DRAINING, Phase.STOPPING)


def service_of(request: Request) -> Service:
    service: Service = request.scope["state"]["service"]
    return service


async def provide(request: Request) -> Service:
    return service_of(request)


ServiceDep = Annotated[Service, Depends(provide)]
