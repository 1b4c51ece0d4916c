"""Rates of API keys: how many texts each key may send, in this process, or through Redis in all processes together."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable
from typing import Self

from redis.asyncio import Redis

from isosim.access.grants import Grant, Rate
from isosim.circuit_breaker import CircuitBreaker
from isosim.errors import Overloaded

PREFIX = "isosim:limit:"
CONNECTIONS = 32  # maximum requests that use Redis at the same time; redis-py opens one connection per request
ROUNDING = 1e-6  # seconds; as in SCRIPT

# `Limits._charge_here` with Redis's clock, so that the clocks of the processes need not agree.
# ARGV: seconds that the texts cost, and seconds that may be missing. Returns the seconds to wait, as text.
SCRIPT = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1e6
local full = math.max(now, tonumber(redis.call('GET', KEYS[1])) or now)
local wait = full - now - tonumber(ARGV[2])
if wait > 1e-6 then return tostring(wait) end
full = full + tonumber(ARGV[1])
if full > now then
  redis.call('SET', KEYS[1], string.format('%.6f', full), 'PX', math.ceil((full - now) * 1000))
else
  redis.call('DEL', KEYS[1])
end
return '0'
"""


class Limits:
    """Charges texts to API keys. An async context manager.

    Each key has an account that holds one period's texts and fills at the key's rate. All that is kept is the time at
    which the account will be full: texts move it into the future (the generic cell rate algorithm of ATM networks). A
    request with more texts than the account holds passes when the account is full, and is paid off afterwards.

    Limits never fail a request: if Redis does not answer in time, this process charges its own accounts.

    Args:
        url: Redis, shared by all processes; None: this process counts alone.
        timeout: seconds within which Redis must answer.
    """

    def __init__(
        self, url: str | None = None, *, timeout: float = 0.05, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.timeout, self.clock, self.breaker = timeout, clock, CircuitBreaker()
        # For the metrics: checks that Redis did not answer, refused requests, and texts by name of the key and result.
        self.fallbacks, self.refused = 0, 0
        self.texts: Counter[tuple[str, str]] = Counter()
        self._full: dict[str, float] = {}  # by account: time of `clock` at which it is full
        self._redis = None
        if url is not None:
            self._redis = Redis.from_url(url, socket_timeout=timeout, socket_connect_timeout=timeout, retry=None)
            self._script = self._redis.register_script(SCRIPT)
        self._turns = asyncio.Semaphore(CONNECTIONS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._redis is not None:
            await self._redis.aclose()

    async def admit(self, grant: Grant, texts: int) -> None:
        """Charges `texts` to the key's rate. With 0 texts, charges nothing, but refuses a key that could not send one.

        Raises:
            Overloaded: the key's rate is used up; nothing was charged.
        """
        rate = grant.rate
        if rate is not None:
            needed = min(max(texts, 1), rate.texts)
            wait = await self._charge(grant, rate, texts, (rate.texts - needed) / rate.per_second)
            if wait:
                self.refused += 1
                self.texts[grant.name, "refused"] += texts
                seconds = max(1, math.ceil(wait))
                raise Overloaded(f"the API key's rate of {rate} is used up; try again in {seconds} s", seconds)
        self.texts[grant.name, "admitted"] += texts

    async def owe(self, grant: Grant, texts: int) -> None:
        """Charges texts even if the account holds fewer: the key's next requests are then refused for longer. Used for
        costs that are known only after admission. A negative number gives texts back."""
        if grant.rate is not None and texts:
            await self._charge(grant, grant.rate, texts, math.inf)

    async def _charge(self, grant: Grant, rate: Rate, texts: int, missing: float) -> float:
        """Charges the texts and returns 0, or returns the seconds to wait.

        `missing`: seconds until the account is full that the request accepts.
        """
        account = f"{grant.id}:{rate.texts}/{rate.seconds}"  # a key whose rate was changed begins with a full account
        cost = texts / rate.per_second
        if self._redis is None:
            return self._charge_here(account, cost, missing)
        async with self._turns:
            if self.breaker.allows():
                try:
                    async with asyncio.timeout(self.timeout):
                        answer = await self._script(keys=[PREFIX + account], args=[cost, min(missing, 1e12)])
                    wait = float(answer)
                except Exception:  # noqa: BLE001 - limits must not fail a request; redis-py raises ValueError for bad bytes
                    self.breaker.failed()
                else:
                    self.breaker.succeeded()
                    return wait
        self.fallbacks += 1
        return self._charge_here(account, cost, missing)

    def _charge_here(self, account: str, cost: float, missing: float) -> float:
        now = self.clock()
        full = max(now, self._full.get(account, now))
        wait = full - now - missing
        if wait > ROUNDING:
            return wait
        self._full[account] = full + cost
        return 0.0
