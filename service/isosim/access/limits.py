"""Limits of API keys that apply to all processes together. Each request runs one script in Redis, in one round trip."""

import asyncio
import math
import os
from collections.abc import Callable
from typing import Self

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from isosim.access.grants import Grant, Limit, LocalLimits, Release, nothing, too_fast, too_many
from isosim.circuit_breaker import CircuitBreaker
from isosim.errors import Overloaded
from isosim.redis_connection import end

PREFIX = "isosim:limit:"
CONNECTIONS = 32  # maximum requests that use Redis at the same time; redis-py opens one connection per request
# Maximum number of releases waiting to be sent. A release tells Redis that a request has ended. If a release is
# dropped, Redis counts the request as in progress until the request's lease ends.
BACKLOG = 4096
CHUNK = 256  # maximum releases sent in one round trip
AGAIN = 0.5  # seconds until releases that could not be sent are sent again

# Uses Redis's clock, so that the clocks of the processes need not agree. Returns numbers as text, because Redis would
# truncate them to integers. If a process is killed, its requests count as in progress until their leases end.
SCRIPT = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1e6
local rate, capacity, texts = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local concurrent, lease = tonumber(ARGV[4]), tonumber(ARGV[5])
if concurrent > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
  if redis.call('ZCARD', KEYS[2]) >= concurrent then return {'concurrent', '1'} end
end
if rate > 0 then
  local held = redis.call('HMGET', KEYS[1], 'tokens', 'at')
  local tokens, at = tonumber(held[1]) or capacity, tonumber(held[2]) or now
  tokens = math.min(capacity, tokens + math.max(0, now - at) * rate)
  local missing = math.min(math.max(texts, 1), capacity) - tokens
  if missing > 1e-9 and ARGV[7] == 'ask' then return {'rate', tostring(missing / rate)} end
  local left = math.min(capacity, tokens - texts)
  redis.call('HSET', KEYS[1], 'tokens', string.format('%.9f', left), 'at', string.format('%.6f', now))
  redis.call('EXPIRE', KEYS[1], math.ceil((capacity - left) / rate) + 1)
end
if concurrent > 0 then
  redis.call('ZADD', KEYS[2], now + lease, ARGV[6])
  redis.call('EXPIRE', KEYS[2], math.ceil(lease) + 1)
end
return {}
"""


class RedisLimits:
    """Limits that processes share through Redis. If Redis does not answer in time, each process applies the limits
    by itself. An async context manager.

    Args:
        timeout: seconds within which Redis must answer.
        lease: seconds after which a request no longer counts as in progress.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float,
        lease: float,
        on_refused: Callable[[Limit], None] = lambda _: None,
        on_fallback: Callable[[], None] = lambda: None,
    ) -> None:
        self.redis = Redis.from_url(url, socket_timeout=timeout, socket_connect_timeout=timeout, retry=None)
        self.timeout, self.lease = timeout, lease
        self.on_refused, self.on_fallback = on_refused, on_fallback
        self.breaker = CircuitBreaker()
        self.local = LocalLimits(on_refused=on_refused)
        self._script = self.redis.register_script(SCRIPT)
        self._turns = asyncio.Semaphore(CONNECTIONS)
        self._released: asyncio.Queue[tuple[str, str, asyncio.Future[None]]] = asyncio.Queue(BACKLOG)
        self._releasing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._releasing = asyncio.create_task(self._release(), name="redis-limits-releases")
        return self

    async def __aexit__(self, *_: object) -> None:
        await end(self._releasing)
        await self.redis.aclose()

    async def admit(self, grant: Grant, texts: int) -> Release:
        if not grant.limited:
            return nothing
        request = os.urandom(8).hex()
        bucket, under_way = places(grant)
        release = nothing if grant.concurrent is None else lambda: self._tell(under_way, request)
        async with self._turns:
            if not self.breaker.allows():
                self.on_fallback()
                return self.local.take(grant, texts)
            try:
                async with asyncio.timeout(self.timeout):
                    answer = await self._script(
                        keys=[bucket, under_way],
                        args=[*rate_of(grant), texts, grant.concurrent or 0, math.ceil(self.lease), request, "ask"],
                    )
                refused, wait = refusal(answer)
            except Exception:  # noqa: BLE001 - limits must not fail a request; redis-py raises ValueError for bad bytes
                self.breaker.failed()
                self.on_fallback()
                return self._take_here(grant, texts, release)
            self.breaker.succeeded()
        if refused == "rate" and grant.rate is not None:
            self.on_refused("rate")
            raise too_fast(grant.rate, wait)
        if refused == "concurrent" and grant.concurrent is not None:
            self.on_refused("concurrent")
            raise too_many(grant.concurrent)
        return release

    async def owe(self, grant: Grant, texts: int) -> None:
        if grant.rate is None or not texts:
            return
        async with self._turns:
            if self.breaker.allows():
                try:
                    async with asyncio.timeout(self.timeout):
                        await self._script(keys=places(grant), args=[*rate_of(grant), texts, 0, 0, "", "owe"])
                except Exception:  # noqa: BLE001 - as above
                    self.breaker.failed()
                else:
                    self.breaker.succeeded()
                    return
        self.on_fallback()
        await self.local.owe(grant, texts)

    def _take_here(self, grant: Grant, texts: int, release: Release) -> Release:
        """Admits a request by the limits of this process alone, because Redis did not answer in time.

        Redis may still have received the request, and then counts it as in progress. So the request's release is sent
        to Redis too.
        """
        try:
            release_here = self.local.take(grant, texts)
        except Overloaded:
            release()
            raise

        def both() -> None:
            release_here()
            release()

        return both

    def _tell(self, under_way: str, request: str) -> asyncio.Future[None] | None:
        if self._released.full():
            return None  # the release is dropped: Redis counts the request until its lease ends
        told = asyncio.get_running_loop().create_future()
        self._released.put_nowait((under_way, request, told))
        return told

    async def _release(self) -> None:
        while True:
            ended = [await self._released.get()]
            while len(ended) < CHUNK and not self._released.empty():
                ended.append(self._released.get_nowait())
            while not await self._tell_all(ended):  # noqa: ASYNC110 - no event tells that Redis answers again
                await asyncio.sleep(AGAIN)
            for _, _, told in ended:
                if not told.cancelled():
                    told.set_result(None)

    async def _tell_all(self, ended: list[tuple[str, str, asyncio.Future[None]]]) -> bool:
        """Sends releases to Redis. Returns False if Redis did not answer and the releases must be sent again."""
        try:
            async with asyncio.timeout(1.0), self.redis.pipeline(transaction=False) as pipeline:
                for under_way, request, _ in ended:
                    pipeline.zrem(under_way, request)
                await pipeline.execute()
        except ResponseError:  # the key has a value of another type, so a second try would fail too
            return True
        except Exception:  # noqa: BLE001 - any failure: later releases must still be sent
            return False
        return True


def places(grant: Grant) -> list[str]:
    """The two Redis keys of an API key: one for the number of texts that the API key may send now, one for its requests
    in progress."""
    return [f"{PREFIX}{{{grant.id}}}:{name}" for name in ("texts", "requests")]


def rate_of(grant: Grant) -> tuple[str, int]:
    """An API key's rate, as arguments of the script: texts per second (as text), and maximum number of texts at once.
    ("0", 0) means no limit."""
    return ("0", 0) if grant.rate is None else (f"{grant.rate.per_second:.9f}", grant.rate.texts)


def refusal(answer: object) -> tuple[Limit | None, float]:
    """Reads the script's answer: the limit that was reached (None: no limit), and the seconds to wait.

    Raises:
        ValueError: the answer does not come from the script.
    """
    match answer:
        case []:
            return None, 0.0
        case [b"rate", bytes(wait)]:
            return "rate", float(wait)
        case [b"concurrent", bytes(wait)]:
            return "concurrent", float(wait)
    raise ValueError("the answer does not come from the script")
