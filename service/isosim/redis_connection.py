"""Refuses what is no primary of Redis, words errors and ends background tasks, for all modules that use Redis."""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Mapping
from typing import Any

from redis import Redis
from redis.exceptions import AuthenticationError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from isosim.errors import Unavailable

log = logging.getLogger("isosim")

START = 1.0  # seconds that a starting process waits for Redis to say what it is
# What is no single primary, by the fields of INFO: what it is, and the remedy.
ROLES = {
    ("cluster_enabled", 1): (
        "Redis runs as a cluster (cluster_enabled:1), which refuses the commands on several keys that the cache needs",
        "use a Redis without cluster mode: one primary, with replicas for failover if you like",
    ),
    ("redis_mode", "sentinel"): (
        "Redis is a Sentinel, which stores nothing", "give the address of the primary that it watches",
    ),
    ("role", "slave"): ("Redis is a replica, which takes no vectors", "give the address of its primary, or promote it"),
}  # fmt: skip


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


def wrong_role(facts: Mapping[str, Any]) -> tuple[str, str] | None:
    """What kind of Redis cannot be a cache, and the remedy, by its answer to INFO."""
    return next((words for (field, value), words in ROLES.items() if facts.get(field) == value), None)


def refuse_wrong_role(url: str) -> None:
    """Raises Unavailable if Redis is a cluster or a Sentinel. Does nothing if it does not answer, or is a replica that
    may be promoted: scoring works without Redis."""
    facts: Mapping[str, Any] = {}
    redis: Redis = Redis.from_url(url, socket_timeout=START, socket_connect_timeout=START, retry=None)
    with redis, contextlib.suppress(Exception):  # even ValueError: redis-py raises it for invalid answers
        facts = redis.info()
    wrong = wrong_role(facts)
    if wrong is not None and facts.get("role") != "slave":
        raise Unavailable("; ".join(wrong))


AGAIN = 0.1  # seconds until a task that has not ended is cancelled again


async def end(task: "asyncio.Task[None] | None") -> None:
    """Cancels a task every AGAIN seconds until it has ended. redis-py may mistake a cancellation for its own timeout,
    and the task then goes on."""
    while task is not None and not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=AGAIN)
