"""The keys' limits of several processes together, on a real Redis that comes and goes."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import redis as sync_redis

from isosim.access.grants import Grant, Rate
from isosim.access.limits import PREFIX, Limits
from isosim.circuit_breaker import FAILURES
from isosim.errors import Overloaded
from tests.processes import RedisServer

TIMEOUT = 2.0  # s; a machine that is busy with other tests must not look like a Redis that is away
READ = frozenset({"read"})


@pytest.fixture
async def pair(redis_server: RedisServer, anyio_backend: str) -> AsyncIterator[list[Limits]]:
    """The limits of two processes on one Redis."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Limits(redis_server.url, timeout=TIMEOUT)) for _ in range(2)]


async def passed(limits: Limits, grant: Grant, texts: int = 1) -> bool:
    try:
        await limits.admit(grant, texts)
    except Overloaded:
        return False
    return True


@pytest.mark.anyio
async def test_two_processes_share_one_rate(pair: list[Limits]) -> None:
    grant = Grant("a", READ, rate=Rate(100, 3600))
    let = [await passed(pair[turn % 2], grant, 10) for turn in range(14)]
    assert let == [True] * 10 + [False] * 4
    assert await passed(pair[0], Grant("b", READ, rate=Rate(100, 3600)), 10)  # another key's is its own
    with pytest.raises(Overloaded, match="100 texts an hour") as refused:
        await pair[1].admit(grant, 10)
    assert 300 < refused.value.retry_after <= 360


@pytest.mark.anyio
async def test_many_at_once_get_no_more_than_the_rate(pair: list[Limits]) -> None:
    """The script is one step: no two requests see the same tokens."""
    grant = Grant("a", READ, rate=Rate(50, 3600))
    let = await asyncio.gather(*(passed(pair[turn % 2], grant) for turn in range(80)))
    assert sum(let) == 50
    assert not any(limits.fallbacks for limits in pair)


@pytest.mark.anyio
async def test_the_bucket_fills_at_its_rate_and_a_large_request_is_paid_off(pair: list[Limits]) -> None:
    grant = Grant("a", READ, rate=Rate(20, 1))
    began = time.monotonic()
    assert await passed(pair[0], grant, 30)  # more than it holds, and it was full
    async with asyncio.timeout(10):
        while not await passed(pair[1], grant, 1):  # noqa: ASYNC110 - time alone fills it
            await asyncio.sleep(0.02)
    assert time.monotonic() - began > 10 / 20  # 10 texts were owed, at 20 a second
    assert not await passed(pair[0], grant, 19)


@pytest.mark.anyio
async def test_entries_go_by_themselves_and_name_no_key(pair: list[Limits], redis_server: RedisServer) -> None:
    await pair[0].admit(Grant("0123456789abcdef", READ, rate=Rate(10, 60)), 3)
    with sync_redis.Redis.from_url(redis_server.url, decode_responses=True) as redis:
        names = redis.keys("*")
        assert isinstance(names, list)
        assert names == [f"{PREFIX}0123456789abcdef:10/60"]
        assert 0 < int(redis.pttl(names[0])) <= 18_000  # ms; 3 texts at 10 a minute


@pytest.mark.anyio
async def test_without_redis_this_process_counts_alone(pair: list[Limits], redis_server: RedisServer) -> None:
    grant = Grant("a", READ, rate=Rate(10, 3600))
    assert await passed(pair[0], grant)
    redis_server.kill()
    started = time.monotonic()
    for limits in pair:
        let = [await passed(limits, grant) for _ in range(12)]
        assert let == [True] * 10 + [False] * 2
    assert time.monotonic() - started < 2 * FAILURES * TIMEOUT + 2
    assert [limits.fallbacks for limits in pair] == [12, 12]
    redis_server.start()
    async with asyncio.timeout(10):
        while not await passed(pair[0], grant):  # noqa: ASYNC110 - the circuit closes by itself
            await asyncio.sleep(0.1)


@pytest.mark.anyio
async def test_a_redis_that_hangs_costs_its_timeout_and_no_request(redis_server: RedisServer) -> None:
    grant, timeout = Grant("a", READ, rate=Rate(1000, 1)), 0.5
    async with Limits(redis_server.url, timeout=timeout) as limits:
        with redis_server.hanging():
            for _ in range(FAILURES):
                started = time.monotonic()
                assert await passed(limits, grant)
                assert timeout * 0.9 < time.monotonic() - started < timeout + 4
            started = time.monotonic()
            for _ in range(50):
                assert await passed(limits, grant)
            assert time.monotonic() - started < 20 * timeout  # waiting each time would take 50


@pytest.mark.anyio
@pytest.mark.parametrize("answer", [b"+OK\r\n", b"$abc\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
async def test_garbage_for_an_answer_fails_no_request_and_is_counted_as_a_failure(
    answer: bytes, anyio_backend: str
) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(4096):
            writer.write(answer)
            await writer.drain()
        writer.close()

    grant = Grant("a", READ, rate=Rate(100, 1))
    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with Limits(url, timeout=0.5) as limits:
            for _ in range(FAILURES):
                await limits.admit(grant, 1)
            assert not limits.breaker.allows()
            assert limits.fallbacks == FAILURES


@pytest.mark.anyio
async def test_what_a_request_owes_counts_in_every_process_and_without_redis(
    pair: list[Limits], redis_server: RedisServer
) -> None:
    grant = Grant("a", READ, rate=Rate(10, 3600))
    assert await passed(pair[0], grant)
    await pair[0].owe(grant, 30)
    assert not await passed(pair[1], grant)
    await pair[1].owe(grant, -100)
    assert [await passed(pair[0], grant) for _ in range(11)] == [True] * 10 + [False]
    redis_server.kill()
    await pair[0].owe(grant, 30)
    assert pair[0].fallbacks == 1
    assert not await passed(pair[0], grant)
