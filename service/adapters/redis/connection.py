"""The basis of every use of Redis: a check that the server is no cluster, and tasks that end."""

import asyncio
import contextlib
import logging

from redis import Redis

from service.core.errors import Unavailable

log = logging.getLogger("isosim")

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


AGAIN = 0.1  # s


async def end(task: "asyncio.Task[None] | None") -> None:
    """Cancels until it has ended: redis-py can take a cancellation for a time-out of its own, and the task goes on."""
    while task is not None and not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=AGAIN)
