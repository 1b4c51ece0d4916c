"""Asks Redis every few seconds whether it is there, so that a quiet service knows before a request finds out."""

import asyncio
import logging
import time

from service.adapters.redis_cache import RedisCache

log = logging.getLogger("isosim")

EVERY = 2.0  # s; three failures open the circuit, so a Redis that goes is known within 6 s


async def beat(cache: RedisCache) -> None:
    """Until cancelled; says when Redis goes and comes back."""
    up, since = True, time.monotonic()
    while True:
        await cache.ping()
        if cache.up is not up:
            up, before, since = cache.up, since, time.monotonic()
            if up:
                log.info("Redis answers again", extra={"facts": {"away_s": round(since - before, 1)}})
            else:
                log.warning("Redis does not answer: vectors are computed and not shared, calibrations refused")
        await asyncio.sleep(EVERY)
