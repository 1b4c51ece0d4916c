"""Whether Redis can be used: asked at the start, and every few seconds, before a request finds out that it cannot."""

import asyncio
import contextlib
import logging
import time

from redis import Redis

from service.adapters.redis_cache import RedisCache
from service.core.errors import Unavailable

log = logging.getLogger("isosim")

EVERY = 2.0  # s; three failures open the circuit, so a Redis that goes is known within 6 s
START = 1.0  # s that a start waits for Redis to say what it is
CLUSTER = "Redis runs as a cluster (cluster_enabled:1), which refuses lookups of several keys and RQ's job queue"
CLUSTER_REMEDY = "use a Redis without cluster mode: one primary, with replicas for failover if you like"


def is_cluster(redis: Redis) -> bool:
    """Raises RedisError or OSError where Redis does not answer."""
    return bool(redis.info("cluster").get("cluster_enabled"))


def refuse_cluster(url: str) -> None:
    """Raises Unavailable where Redis is a cluster. One that cannot be asked passes: scoring does without it."""
    cluster = False
    redis: Redis = Redis.from_url(url, socket_timeout=START, socket_connect_timeout=START, retry=None)
    with redis, contextlib.suppress(Exception):  # redis-py meets garbage with whatever int() raises
        cluster = is_cluster(redis)
    if cluster:
        raise Unavailable(f"{CLUSTER}; {CLUSTER_REMEDY}")


async def beat(cache: RedisCache) -> None:
    """Until cancelled; says when Redis goes and comes back, and why it refuses lookups where it answers."""
    up, refusal, since = True, "", time.monotonic()
    while True:
        await cache.probe()
        if cache.up is not up:
            up, before, since = cache.up, since, time.monotonic()
            if up:
                log.info("Redis answers again", extra={"facts": {"away_s": round(since - before, 1)}})
            else:
                log.warning("Redis does not answer: vectors are computed and not shared, calibrations refused")
        if cache.refusal != refusal:
            refusal = cache.refusal
            if refusal:
                log.warning("Redis refuses lookups: %s", refusal)
        await asyncio.sleep(EVERY)
