"""Hints over Redis that there is a new job. Best effort: workers find jobs without it, only later."""

import asyncio
import contextlib
import logging
import time
from typing import Any

from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import RedisError

from isosim.redis_connection import why

CHANNEL = "isosim:jobs"
AGAIN = 10.0  # s until Redis is tried again
TIMEOUT = 2.0  # s to connect to Redis, and for a command

log = logging.getLogger(__name__)


async def announce(redis: AsyncRedis) -> None:
    """Tells waiting workers that there is a new job."""
    with contextlib.suppress(RedisError, OSError, asyncio.TimeoutError):
        await redis.publish(CHANNEL, b"")


class RedisHints:
    """Hints for one worker."""

    def __init__(self, url: str) -> None:
        self._redis = Redis.from_url(url, socket_timeout=TIMEOUT, socket_connect_timeout=TIMEOUT, retry=None)
        self._channel: Any = None
        self._again = 0.0

    def wait(self, seconds: float) -> bool:
        """Waits for a hint. Returns whether one came."""
        try:
            if self._channel is not None:
                return self._heard(seconds)
            if time.monotonic() >= self._again:
                self._channel = self._redis.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
                self._channel.subscribe(CHANNEL)
                return True  # there may have been hints before
        except (RedisError, OSError) as error:
            log.warning("no hints of new jobs from Redis: %s", why(error))
            with contextlib.suppress(RedisError, OSError):
                self._channel.close()
            self._channel, self._again = None, time.monotonic() + AGAIN
        time.sleep(seconds)
        return False

    def _heard(self, seconds: float) -> bool:
        heard = self._channel.get_message(timeout=seconds) is not None
        while self._channel.get_message(timeout=0.0) is not None:
            heard = True
        return heard
