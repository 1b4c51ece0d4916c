"""Why Redis cannot be used, in the words of log, API and `isosim doctor`."""

import socket
from collections.abc import Callable

import pytest
from redis import Redis
from redis.exceptions import RedisError

from isosim.redis_connection import why
from tests.processes import RedisServer, free_port


def reason(url: str) -> str:
    with Redis.from_url(url, socket_timeout=0.2, socket_connect_timeout=0.2, retry=None) as redis:
        with pytest.raises((RedisError, OSError)) as refused:
            redis.ping()
        return why(refused.value)


def refused() -> str:
    return reason(f"redis://127.0.0.1:{free_port()}")


def silent() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return reason(f"redis://127.0.0.1:{server.getsockname()[1]}")


@pytest.mark.parametrize(("fails", "words"), [(refused, "the connection is refused"), (silent, "no answer in time")])
def test_a_redis_that_is_away_and_one_that_hangs_differ(fails: Callable[[], str], words: str) -> None:
    assert fails() == words


def test_a_wrong_password_is_named(redis_server: RedisServer) -> None:
    with Redis.from_url(redis_server.url) as admin:
        admin.config_set("requirepass", "right")
    for place in (":wrong@", ""):
        found = reason(redis_server.url.replace("redis://", f"redis://{place}"))
        assert "refuses the user or password" in found
        assert "wrong" not in found
