"""The vector cache in Redis that servers share. Lookups have a time limit. A failure of Redis fails no request."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Literal, Self

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from isosim.circuit_breaker import CircuitBreaker
from isosim.redis_connection import end, why

log = logging.getLogger("isosim")

Event = Literal["error", "open", "dropped"]

# Contains the version of the entries' format (encoders/texts.py). A release reads only entries in its own format.
PREFIX = b"isosim:v3:"
BACKLOG = 8192  # maximum entries waiting to be stored; further entries are dropped and counted
CHUNK = 256  # maximum entries stored in one round trip
# Keys that a probe looks up. A Redis cluster puts the two keys into different slots, and refuses to look them up
# together. A cluster refuses most other lookups for the same reason.
PROBED = [PREFIX + b"probe:1", PREFIX + b"probe:2"]


EVERY = 2.0  # seconds between probes; three failures open the circuit, so an outage is noticed within 6 s


class RedisCache:
    """Looks up entries with one MGET, and stores entries in the background. An async context manager."""

    def __init__(
        self, url: str, *, ttl: int, timeout: float, on_event: Callable[[Event, int], None] = lambda _, __: None
    ) -> None:
        self.redis = Redis.from_url(
            url, socket_timeout=timeout, socket_connect_timeout=timeout, decode_responses=False, retry=None
        )
        self.ttl, self.timeout, self.on_event = ttl, timeout, on_event
        self.breaker = CircuitBreaker()
        self.trouble = ""  # why the last lookup or write failed
        self.write_refusal = ""  # Redis's error message for the last entries sent to it; empty if Redis stored them
        self._backlog: asyncio.Queue[tuple[bytes, bytes]] = asyncio.Queue(BACKLOG)
        self._writer: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._writer = asyncio.create_task(self._write(), name="redis-cache-writer")
        return self

    async def __aexit__(self, *_: object) -> None:
        await end(self._writer)
        await self.redis.aclose()

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """An entry or None for each key. All are None after a failure or timeout, and while the circuit is open."""
        if not self.breaker.allows():
            self.on_event("open", len(keys))
            return [None] * len(keys)
        try:
            async with asyncio.timeout(self.timeout):
                entries: object = await self.redis.mget([PREFIX + key for key in keys])
            if not isinstance(entries, list) or len(entries) != len(keys):
                raise ConnectionError("the answer does not match the request")
        except Exception as error:  # noqa: BLE001 - a cache must not fail a request; redis-py raises ValueError for invalid bytes
            self._failed(error)
            self.on_event("error", len(keys))
            return [None] * len(keys)
        self.breaker.succeeded()
        return [entry if isinstance(entry, bytes) else None for entry in entries]

    @property
    def up(self) -> bool:
        """True if Redis has answered at least once and the circuit is closed."""
        return self.breaker.closed

    async def probe(self) -> None:
        """Looks up keys that no request needs. The circuit counts the result like that of a request's lookup.

        PING is not enough: in a cluster, or if the Redis user may not use MGET, PING succeeds but lookups fail.
        """
        if not self.breaker.allows():
            return
        try:
            async with asyncio.timeout(self.timeout):
                await self.redis.mget(PROBED)
        except Exception as error:  # noqa: BLE001 - redis-py raises ValueError for invalid answers
            self._failed(error)
        else:
            self.breaker.succeeded()

    def _failed(self, error: Exception) -> None:
        self.breaker.failed()
        self.trouble = why(error)

    def put(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        for entry in entries:
            try:
                self._backlog.put_nowait(entry)
            except asyncio.QueueFull:
                self.on_event("dropped", 1)

    async def _write(self) -> None:
        while True:
            entries = [await self._backlog.get()]
            while len(entries) < CHUNK and not self._backlog.empty():
                entries.append(self._backlog.get_nowait())
            if not self.breaker.allows():
                self.on_event("dropped", len(entries))
                continue
            try:
                async with asyncio.timeout(1.0), self.redis.pipeline(transaction=False) as pipeline:
                    for key, entry in entries:
                        pipeline.set(PREFIX + key, entry, ex=self.ttl)
                    # Errors are returned, not raised: the message of a raised error would contain the vector.
                    answers = await pipeline.execute(raise_on_error=False)
                refused = [answer for answer in answers if isinstance(answer, Exception)]
                if others := [error for error in refused if not isinstance(error, ResponseError)]:
                    raise others[0]
            except Exception as error:  # noqa: BLE001 - as above; and the writer must go on
                self._failed(error)
                self.on_event("dropped", len(entries))
            else:
                self.breaker.succeeded()  # also if Redis refuses the entries (full, read-only), because lookups work
                self.write_refusal = f"{type(refused[0]).__name__}: {refused[0]}" if refused else ""
                if refused:
                    self.on_event("dropped", len(refused))


async def beat(cache: RedisCache) -> None:
    """Probes Redis until cancelled. Logs when it cannot be used, answers again, or refuses to store vectors."""
    trouble, write_refusal, since = "", "", time.monotonic()
    while True:
        await cache.probe()
        now = "" if cache.up else cache.trouble
        if now and now != trouble:
            since = since if trouble else time.monotonic()
            log.warning("Redis cannot be used (%s): vectors are computed but not shared", now)
        elif trouble and not now:
            log.info("Redis answers again", extra={"facts": {"away_s": round(time.monotonic() - since, 1)}})
        trouble = now
        if cache.write_refusal != write_refusal:
            write_refusal = cache.write_refusal
            if write_refusal:
                log.warning("Redis refuses vectors: %s", write_refusal)
            else:
                log.info("Redis takes vectors again")
        await asyncio.sleep(EVERY)
