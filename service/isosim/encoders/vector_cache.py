"""The cache of vectors: in this process, and behind it one that processes share. Its keys and entries hold no text."""

import asyncio
import hashlib
import struct
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from isosim.encoders.texts import Judge, PooledVector, judge_together

ENTRY_OVERHEAD = 400  # bytes of Python objects per entry: key, tuple, array header, dictionary slot (sys.getsizeof)
# Maximum number of concurrent lookups; each lookup may serve several requests. If Redis hangs, 3 lookups time out
# together. These 3 failures in a row open the cache's circuit breaker (`circuit_breaker.FAILURES`).
LOOKUPS = 3
# Maximum number of keys in a combined lookup; a request with more keys gets one of its own, without the test.
MOST_KEYS = 256


class SharedCache(Protocol):
    """A vector cache shared between processes. It never raises: an error is a miss."""

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]: ...

    def put(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """Returns at once; entries are stored in the background."""


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
        self._turns = asyncio.Semaphore(LOOKUPS)
        # The lookup that has not begun: its keys, the test of each, and what it will find.
        self._next: tuple[list[bytes], list[Judge | None], asyncio.Task[dict[bytes, PooledVector]]] | None = None

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

    async def find(self, keys: Sequence[bytes], judge: Judge | None = None) -> dict[bytes, PooledVector]:
        """The vectors of those keys that the shared cache has; this process holds them from now on.

        A vector that this process has computed meanwhile is preferred, so that all answers have the same bits.
        """
        if self._next is None or len(self._next[0]) + len(keys) > MOST_KEYS:
            gathered, tests = list[bytes](), list[Judge | None]()
            self._next = gathered, tests, asyncio.create_task(self._look_up(gathered, tests), name="cache-lookup")
        asked, judges, lookup = self._next
        asked += keys
        judges += [judge if len(keys) <= MOST_KEYS else None] * len(keys)
        shared = await asyncio.shield(lookup)
        found = {key: pooled for key in keys if (pooled := self.get(key) or shared.get(key)) is not None}
        for key, pooled in found.items():
            self._hold(key, pooled)
        return found

    async def _look_up(self, asked: list[bytes], judges: list[Judge | None]) -> dict[bytes, PooledVector]:
        assert self.shared is not None  # noqa: S101 - `find` is called only with one
        async with self._turns:
            if self._next is not None and self._next[0] is asked:
                self._next = None
            entries = await self.shared.get(asked)
        texts = [None if entry is None else decoded(key, entry) for key, entry in zip(asked, entries, strict=True)]
        judge_together(zip(judges, texts, strict=True))
        return {key: pooled for key, pooled in zip(asked, texts, strict=True) if pooled is not None}


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
