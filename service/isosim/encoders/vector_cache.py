"""The cache of vectors: in this process, and behind it one that processes share. Its keys and entries hold no text."""

import asyncio
import hashlib
import struct
from collections import OrderedDict, deque
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple, Protocol

import numpy as np

from isosim.encoders.texts import Judge, PooledVector, judge_together

ENTRY_OVERHEAD = 400  # bytes of Python objects per entry: key, tuple, array header, dictionary slot (sys.getsizeof)
# Maximum number of concurrent lookups; each lookup may serve several requests. If Redis hangs, 3 lookups time out
# together. These 3 failures in a row open the cache's circuit breaker (`circuit_breaker.FAILURES`).
LOOKUPS = 3
# Maximum number of keys in a combined lookup. A request with more keys gets a lookup of its own, without the
# out-of-domain test. Its texts are tested when they are scored.
MOST_KEYS = 256


class SharedCache(Protocol):
    """A vector cache shared between processes. It never raises: an error is a miss."""

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]: ...

    def put(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """Returns at once; entries are stored in the background."""


class Lookup(NamedTuple):
    """Keys that one request looks up, its out-of-domain test, and the future that receives a vector or None for each
    key."""

    keys: Sequence[bytes]
    judge: Judge | None
    answer: "asyncio.Future[list[PooledVector | None]]"


class VectorCache:
    """Least-recently-used cache of vectors, in front of a shared one if there is one. Lives on one event loop.

    Lookups in the shared cache are combined if they are requested in the same iteration of the event loop, or while
    `LOOKUPS` other lookups are running. Then each domain's out-of-domain test is called once, with all texts that were
    found for the domain: a fifth of the throughput of texts that only Redis has (`make bench PARTS=cached`).
    """

    def __init__(self, capacity: int, shared: SharedCache | None = None) -> None:
        self.capacity = capacity  # bytes in this process
        self.shared = shared
        self.size = 0  # bytes of all entries in this process
        self._entries: OrderedDict[bytes, PooledVector] = OrderedDict()
        self._asked: deque[Lookup] = deque()
        self._under_way: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> PooledVector | None:
        """The vector that this process holds."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def put(self, key: bytes, pooled: PooledVector) -> None:
        """Holds a vector that was computed, and shares it."""
        self._hold(key, pooled)
        if self.shared is not None:
            self.shared.put([(key, encoded(key, pooled))])

    def _hold(self, key: bytes, entry: PooledVector) -> None:
        cost = entry.vector.nbytes + ENTRY_OVERHEAD
        if key in self._entries or cost > self.capacity:
            return
        self._entries[key] = entry
        self.size += cost
        while self.size > self.capacity:
            _, oldest = self._entries.popitem(last=False)
            self.size -= oldest.vector.nbytes + ENTRY_OVERHEAD

    async def find(self, keys: Sequence[bytes], judge: Judge | None) -> list[PooledVector | None]:
        """The vector of each key in the shared cache, or None; this process holds them from now on."""
        loop = asyncio.get_running_loop()
        lookup = Lookup(keys, judge, loop.create_future())
        if not self._asked:
            loop.call_soon(self._begin)
        self._asked.append(lookup)
        found = await lookup.answer
        for key, pooled in zip(keys, found, strict=True):
            if pooled is not None:
                self._hold(key, pooled)
        return found

    def close(self) -> None:
        """Ends all lookups. Open lookups return misses."""
        while self._asked:
            lookup = self._asked.popleft()
            if not lookup.answer.done():
                lookup.answer.set_result([None] * len(lookup.keys))
        for task in self._under_way:
            task.cancel()

    def _begin(self) -> None:
        while self._asked and len(self._under_way) < LOOKUPS:
            lookups: list[Lookup] = []
            count = 0
            while self._asked and (not lookups or count + len(self._asked[0].keys) <= MOST_KEYS):
                lookup = self._asked.popleft()
                if not lookup.answer.done():  # already done if the request was cancelled
                    lookups.append(lookup)
                    count += len(lookup.keys)
            if lookups:
                task = asyncio.get_running_loop().create_task(self._look_up(lookups), name="shared-cache-lookup")
                self._under_way.add(task)
                task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._under_way.discard(task)
        self._begin()

    async def _look_up(self, lookups: list[Lookup]) -> None:
        assert self.shared is not None  # noqa: S101 - `find` is called only with one
        keys = [key for lookup in lookups for key in lookup.keys]
        found: list[PooledVector | None] = [None] * len(keys)
        try:
            entries = await self.shared.get(keys)
            found = [None if e is None else decoded(key, e) for key, e in zip(keys, entries, strict=True)]
            if len(keys) <= MOST_KEYS:  # testing more texts in one call would block the event loop
                judge_together(zip([lookup.judge for lookup in lookups for _ in lookup.keys], found, strict=True))
        finally:
            rest = iter(found)
            for lookup in lookups:
                result = list(islice(rest, len(lookup.keys)))
                if not lookup.answer.done():
                    lookup.answer.set_result(result)


HEADER = struct.Struct("<BBHQ")
VERSION = 7  # of the format of entries; those of another version are misses
DTYPE = np.dtype("<f4")
TRUNCATED, UNREADABLE = 1, 2  # bits of the flag byte
CHECK = 8  # bytes of the checksum


def encoded(key: bytes, pooled: PooledVector) -> bytes:
    """A shared cache's entry: version byte, flag byte, token count, hash of the token ids
    (`PooledVector.unknown_hash`), vector as float32, checksum of all this and the key."""
    flags = TRUNCATED * pooled.truncated | UNREADABLE * pooled.unreadable
    header = HEADER.pack(VERSION, flags, min(pooled.tokens, 0xFFFF), pooled.unknown_hash)
    entry = header + pooled.vector.astype(DTYPE).tobytes()
    return entry + checksum(key, entry)


def decoded(key: bytes, entry: bytes) -> PooledVector | None:
    """The stored vector, or None if the entry was changed, or was stored for another key, by another version, or cut.

    The key stands for an encoder, so that the checksum says that the vector has its size.
    """
    size = len(entry) - HEADER.size - CHECK
    if size <= 0 or size % DTYPE.itemsize or entry[0] != VERSION or entry[-CHECK:] != checksum(key, entry[:-CHECK]):
        return None
    _, flags, tokens, unknown_hash = HEADER.unpack_from(entry)
    vector = np.frombuffer(entry, DTYPE, size // DTYPE.itemsize, offset=HEADER.size).astype(np.float32)
    return PooledVector(vector, tokens, bool(flags & TRUNCATED), bool(flags & UNREADABLE), unknown_hash)


def checksum(key: bytes, entry: bytes) -> bytes:  # CHECK bytes
    return hashlib.blake2b(entry, digest_size=CHECK, key=key).digest()
