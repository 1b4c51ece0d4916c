"""The shared cache on a real Redis that comes and goes; and why Redis cannot be used, in words."""

import asyncio
import socket
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import redis as sync_redis
from redis import Redis
from redis.exceptions import RedisError

from isosim.circuit_breaker import FAILURES, CircuitBreaker
from isosim.encoders.cache import BACKLOG, PREFIX, RedisCache
from isosim.encoders.vector_cache import MOST_KEYS, VectorCache
from isosim.errors import Unavailable
from isosim.redis_connection import refuse_wrong_role, why, wrong_role
from isosim.settings import Settings
from tests.processes import Process, RedisServer, free_port, wait_until

pytestmark = pytest.mark.anyio

TIMEOUT = 1.0  # s; a machine that is busy for less is no Redis that is away


@pytest.fixture
def events() -> Counter[str]:
    return Counter()


@pytest.fixture
async def cache(redis_server: RedisServer, events: Counter[str], anyio_backend: str) -> AsyncIterator[RedisCache]:
    def count(event: str, number: int) -> None:
        events[event] += number

    async with RedisCache(redis_server.url, ttl=100, timeout=TIMEOUT, on_event=count) as made:
        yield made


async def eventually(condition: Callable[[], Awaitable[bool]], seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 - Redis tells nobody
            await asyncio.sleep(0.05)


async def store(cache: RedisCache, **entries: bytes) -> None:
    """Puts and waits until they are there."""
    keys = [name.encode() for name in entries]
    cache.put(list(zip(keys, entries.values(), strict=True)))

    async def there() -> bool:
        return await cache.get(keys) == list(entries.values())

    await eventually(there)


async def test_entries_are_under_our_name_and_expire_and_come_in_the_order_asked_for(
    cache: RedisCache, redis_server: RedisServer
) -> None:
    """A value of another kind under our name is a miss."""
    await store(cache, a=b"\x00\xff", b=b"")
    with sync_redis.Redis.from_url(redis_server.url) as redis:
        assert {*redis.keys("*")} == {PREFIX + b"a", PREFIX + b"b"}
        assert 90 < redis.ttl(PREFIX + b"a") <= 100
        redis.hset((PREFIX + b"c").decode(), "field", "value")
    assert await cache.get([b"b", b"missing", b"a", b"c", b"b"]) == [b"", None, b"\x00\xff", None, b""]


async def test_without_redis_everything_is_a_miss_in_time_and_counted(
    cache: RedisCache, redis_server: RedisServer, events: Counter[str]
) -> None:
    await store(cache, a=b"1")
    redis_server.kill()
    start = time.monotonic()
    assert await cache.get([b"a", b"b"]) == [None, None]
    assert time.monotonic() - start < 5 * TIMEOUT  # a connection that is refused costs next to nothing
    assert events == {"error": 2}


async def test_a_redis_that_hangs_costs_the_timeout_and_then_nothing_until_it_is_tried_again(
    cache: RedisCache, redis_server: RedisServer, events: Counter[str]
) -> None:
    await store(cache, a=b"1")
    with redis_server.hanging():
        start = time.monotonic()
        for _ in range(FAILURES):
            assert await cache.get([b"a"]) == [None]
        assert time.monotonic() - start > FAILURES * TIMEOUT * 0.9
        assert events["error"] == FAILURES
        start = time.monotonic()
        for _ in range(100):
            assert await cache.get([b"a"]) == [None]
        assert time.monotonic() - start < 10 * TIMEOUT  # waiting each time would take 100
        assert events["open"] == 100


async def test_an_answer_that_comes_late_is_never_taken_for_another_keys(
    cache: RedisCache, redis_server: RedisServer
) -> None:
    await store(cache, a=b"of a", b=b"of b")
    with redis_server.hanging():
        assert await cache.get([b"a"]) == [None]
        cache.put([(b"c", b"of c")])
        await asyncio.sleep(0.1)
    for _ in range(5):
        assert await cache.get([b"b"]) in ([b"of b"], [None])
        assert await cache.get([b"a"]) in ([b"of a"], [None])

    async def back() -> bool:
        return await cache.get([b"b", b"a"]) == [b"of b", b"of a"]

    await eventually(back)


async def test_what_the_backlog_cannot_hold_is_dropped_and_counted_and_the_rest_is_stored(
    cache: RedisCache, redis_server: RedisServer, events: Counter[str]
) -> None:
    cache.put([(str(number).encode(), b"1") for number in range(BACKLOG + 10)])
    assert events == {"dropped": 10}
    with sync_redis.Redis.from_url(redis_server.url) as redis:

        async def all_stored() -> bool:
            return await asyncio.to_thread(redis.dbsize) == BACKLOG

        await eventually(all_stored)


async def test_entries_put_while_redis_is_away_are_dropped_and_counted(
    cache: RedisCache, redis_server: RedisServer, events: Counter[str]
) -> None:
    redis_server.kill()
    cache.put([(str(number).encode(), b"1") for number in range(300)])

    async def dropped() -> bool:
        return events["dropped"] == 300

    await eventually(dropped)


async def test_a_full_redis_says_why_it_takes_no_vectors_and_is_read_meanwhile(
    cache: RedisCache, redis_server: RedisServer, events: Counter[str]
) -> None:
    await store(cache, known=b"1")
    with sync_redis.Redis.from_url(redis_server.url) as client:
        client.config_set("maxmemory", 1)
        cache.put([(b"new", b"the vector"), (b"newer", b"the vector")])

        async def dropped() -> bool:
            return events["dropped"] == 2

        await eventually(dropped)
        # Nothing of the command, which holds the vector.
        assert cache.write_refusal == "OutOfMemoryError: command not allowed when used memory > 'maxmemory'."
        assert await cache.get([b"known"]) == [b"1"]
        assert cache.up
        client.config_set("maxmemory", 0)
    await store(cache, new=b"the vector")
    await eventually(lambda: settled(cache))
    assert events["dropped"] == 2


async def settled(cache: RedisCache) -> bool:
    """The writer has heard that the last entries are stored."""
    return cache.write_refusal == ""


async def test_a_quiet_service_notices_that_redis_went_and_came_back(
    cache: RedisCache, redis_server: RedisServer, events: Counter[str]
) -> None:
    assert not cache.up  # it has not been met
    await cache.probe()
    assert cache.up
    redis_server.kill()
    for _ in range(FAILURES):
        await cache.probe()
    assert not cache.up
    assert await cache.get([b"a"]) == [None]
    assert events == {"open": 1}  # the first request after it does not have to find out
    redis_server.start()

    async def back() -> bool:
        await cache.probe()
        return cache.up

    await eventually(back)


async def test_those_who_wait_for_a_hung_redis_wait_once(cache: RedisCache, redis_server: RedisServer) -> None:
    await store(cache, a=b"1")
    with redis_server.hanging():
        began = time.monotonic()
        lookups = VectorCache(0, cache)
        answers = await asyncio.gather(*(lookups.find([b"a"] * MOST_KEYS) for _ in range(20)))
        took = time.monotonic() - began
    assert answers == [{}] * 20
    assert took < 5 * TIMEOUT  # one after the other they would take 20


async def test_one_late_answer_does_not_take_redis_for_gone(cache: RedisCache) -> None:
    await cache.probe()
    cache.breaker.failed()
    assert cache.up


def test_the_circuit_opens_after_failures_in_a_row_and_lets_one_attempt_through_a_pause() -> None:
    now = 0.0
    breaker = CircuitBreaker(failures=3, pause=2.0, clock=lambda: now)
    for _ in range(2):
        breaker.failed()
    breaker.succeeded()
    for _ in range(3):
        assert breaker.allows()
        breaker.failed()
    assert not breaker.allows()
    now = 2.0
    assert [breaker.allows() for _ in range(3)] == [True, False, False]
    breaker.failed()
    now = 3.9
    assert not breaker.allows()
    now = 4.0
    assert breaker.allows()
    breaker.succeeded()
    assert all(breaker.allows() for _ in range(3))


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n", b"*x\r\n$y\r\n", b":1\r\n", b"*1\r\n$3\r\nabc\r\n", b"*1\r\n" * 5000,
        b"-ERR \xff no\r\n", b"*2\r\n$3\r\nab", b"",
    ],
    ids=range(8),
)  # fmt: skip
async def test_garbage_for_an_answer_is_a_miss(answer: bytes, anyio_backend: str) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(4096) and answer:
            writer.write(answer)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with RedisCache(url, ttl=100, timeout=0.2, on_event=lambda *_: None) as cache:
            await cache.probe()
            assert await cache.get([b"a", b"b"]) == [None, None]


async def test_a_network_that_drops_what_is_sent_costs_the_timeout(anyio_backend: str) -> None:
    """Not even a refusal comes back: the queue of those who wait to be accepted is full."""
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for one in (first, second):
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        url = f"redis://127.0.0.1:{full.getsockname()[1]}"
        async with RedisCache(url, ttl=100, timeout=0.2, on_event=lambda *_: None) as cache:
            start = time.monotonic()
            assert await cache.get([b"a"]) == [None]
            assert time.monotonic() - start < 5


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


class OnASocket(RedisServer):
    def options(self) -> list[str]:
        return [*super().options(), "--unixsocket", f"/tmp/isosim-{self.port}.sock"]  # noqa: S108 - a path may be short


def test_a_wrong_password_is_named_and_the_right_one_opens_a_unix_socket(tmp_path: Path) -> None:
    server = OnASocket(tmp_path)
    server.start()
    with Redis.from_url(server.url) as admin:
        admin.config_set("requirepass", "p/w")
    for place in (":wrong@", ""):
        found = reason(server.url.replace("redis://", f"redis://{place}"))
        assert "refuses the user or password" in found
        assert "wrong" not in found
    place = f"unix:///tmp/isosim-{server.port}.sock"
    address = str(Settings(redis_url=place, redis_password="p/w").redis_address)  # noqa: S106
    with Redis.from_url(address) as redis:
        assert redis.ping()
    server.kill()
    Path(place.removeprefix("unix://")).unlink()


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
