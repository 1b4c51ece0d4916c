"""Refuses Redis clusters and ends background tasks, for all modules that use Redis."""

import asyncio
import contextlib
import logging

from redis import Redis

from service.core.errors import Unavailable

log = logging.getLogger("isosim")

START = 1.0  # seconds that a starting process waits for Redis to say whether it is a cluster
CLUSTER = (
    "Redis runs as a cluster (cluster_enabled:1), which refuses commands on several keys; the cache "
    "and RQ's job queue need such commands"
)
CLUSTER_REMEDY = "use a Redis without cluster mode: one primary, with replicas for failover if you like"


def is_cluster(redis: Redis) -> bool:
    """Whether Redis runs in cluster mode. Raises RedisError or OSError if it does not answer."""
    return bool(redis.info("cluster").get("cluster_enabled"))


def refuse_cluster(url: str) -> None:
    """Raises Unavailable if Redis is a cluster. Does nothing if Redis does not answer, because scoring works without
    Redis."""
    cluster = False
    redis: Redis = Redis.from_url(url, socket_timeout=START, socket_connect_timeout=START, retry=None)
    with redis, contextlib.suppress(Exception):  # even ValueError: redis-py raises it for invalid answers
        cluster = is_cluster(redis)
    if cluster:
        raise Unavailable(f"{CLUSTER}; {CLUSTER_REMEDY}")


AGAIN = 0.1  # seconds until a task that has not ended is cancelled again


async def end(task: "asyncio.Task[None] | None") -> None:
    """Cancels a task every AGAIN seconds until it has ended. redis-py may mistake a cancellation for its own timeout,
    and the task then goes on."""
    while task is not None and not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=AGAIN)
