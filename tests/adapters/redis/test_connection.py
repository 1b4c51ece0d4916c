"""Why Redis cannot be used, in the words of log, API and `isosim doctor`."""

import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import RedisError

from isosim.errors import Unavailable
from isosim.redis_connection import refuse_wrong_role, why, wrong_role
from tests.processes import Process, RedisServer, free_port, wait_until


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


def test_a_sentinel_is_refused_at_a_start_and_a_replica_only_named(redis_server: RedisServer, tmp_path: Path) -> None:
    """A replica may be promoted while the server runs."""
    port, log, conf = free_port(), tmp_path / "log", tmp_path / "sentinel.conf"
    conf.write_text(f"port {port}\ndir {tmp_path}\n")
    with log.open("wb") as output:
        popen = subprocess.Popen(["redis-server", conf, "--sentinel"], stdout=output, start_new_session=True)
    sentinel = Process(popen, log)
    try:
        wait_until(lambda: "redis_mode:sentinel" in said(port))
        with pytest.raises(Unavailable, match="a Sentinel, which stores nothing; give the address of the primary"):
            refuse_wrong_role(f"redis://127.0.0.1:{port}")
    finally:
        sentinel.kill()
    with Redis.from_url(redis_server.url) as redis:
        refuse_wrong_role(redis_server.url)
        assert wrong_role(redis.info()) is None
        redis.replicaof("127.0.0.1", free_port())
        refuse_wrong_role(redis_server.url)
        found = wrong_role(redis.info())
        assert found is not None
        assert "replica" in found[0]


def said(port: int) -> str:
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as connection:
            connection.sendall(b"INFO server\r\n")
            return connection.recv(65536).decode()
    except OSError:
        return ""
