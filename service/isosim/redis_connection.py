"""Refuses Redis clusters, words errors and ends background tasks, for all modules that use Redis."""

import asyncio
import contextlib
import logging
import ssl

from redis import Redis
from redis.exceptions import AuthenticationError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from isosim.errors import Unavailable

log = logging.getLogger("isosim")

START = 1.0  # seconds that a starting process waits for Redis to say whether it is a cluster
CLUSTER = (
    "Redis runs as a cluster (cluster_enabled:1), which refuses commands on several keys; the cache needs such commands"
)
CLUSTER_REMEDY = "use a Redis without cluster mode: one primary, with replicas for failover if you like"


def why(error: BaseException) -> str:
    """Why Redis cannot be used, in a few words. Contains no part of a request."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return f"TLS fails: {getattr(cause, 'verify_message', '') or cause.reason}"
        if isinstance(cause, ConnectionRefusedError):
            return "the connection is refused"
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, AuthenticationError):
        return "it refuses the user or password (ISOSIM_REDIS_URL, ISOSIM_REDIS_PASSWORD)"
    if isinstance(error, ResponseError):
        return f"it refuses the command: {error}"
    if isinstance(error, TimeoutError | RedisTimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__


def refuse_cluster(url: str) -> None:
    """Raises Unavailable if Redis is a cluster. Does nothing if Redis does not answer, because scoring works without
    Redis."""
    cluster = False
    redis: Redis = Redis.from_url(url, socket_timeout=START, socket_connect_timeout=START, retry=None)
    with redis, contextlib.suppress(Exception):  # even ValueError: redis-py raises it for invalid answers
        cluster = bool(redis.info("cluster").get("cluster_enabled"))
    if cluster:
        raise Unavailable(f"{CLUSTER}; {CLUSTER_REMEDY}")


AGAIN = 0.1  # seconds until a task that has not ended is cancelled again


async def end(task: "asyncio.Task[None] | None") -> None:
    """Cancels a task every AGAIN seconds until it has ended. redis-py may mistake a cancellation for its own timeout,
    and the task then goes on."""
    while task is not None and not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=AGAIN)
