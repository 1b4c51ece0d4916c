"""Keys: what a line grants, the file while it changes, and limits alone and shared through Redis."""

import asyncio
import hashlib
import logging
import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
import redis as sync_redis
from hypothesis import given
from hypothesis import strategies as st

from isosim.access.grants import ANYBODY, NOBODY, Grant, Rate, parse_grant
from isosim.access.key_file import LOOK_SECONDS, Keys
from isosim.access.limits import PREFIX, Limits
from isosim.circuit_breaker import FAILURES
from isosim.errors import Forbidden, Overloaded, Unauthorized
from tests.processes import RedisServer

pytestmark = pytest.mark.anyio


def test_a_line_grants_what_it_says_and_the_rest_of_it_is_a_name() -> None:
    words = ["read,calibrate", "domains=reuters,sts-*", "rate=100/s", "until=2027-01-31", "the", "search", "team"]
    grant = parse_grant("id", words)
    assert grant.scopes == {"read", "calibrate"}
    assert (grant.rate, grant.until, grant.name) == (Rate(100, 1), date(2027, 1, 31), "the search team")
    assert [grant.may_use(name) for name in ("reuters", "sts-b", "reuters2", "sts", "default")] == [
        True, True, False, False, False,
    ]  # fmt: skip
    bare = parse_grant("id", ["read", "domains=*"])
    assert bare.may_use("anything")
    assert bare.rate is None and bare.until is None


@pytest.mark.parametrize(("given", "rate"), [("100/s", 100), ("6000/m", 100), ("360000/h", 100)])
def test_a_rate_has_its_period(given: str, rate: float) -> None:
    found = parse_grant("id", ["read", "domains=*", f"rate={given}"]).rate
    assert found is not None
    assert found.per_second == rate


@pytest.mark.parametrize(
    "words",
    [
        [], [""], ["write"], ["read,"], ["read,write"], ["READ"],
        ["read", "domain=reuters"],  # a misspelt option would leave all domains open
        ["read"], ["read", "name"],  # a line that was cut off would leave all domains open
        ["read", "domains="], ["read", "domains=Reuters"], ["read", "domains=a,,b"], ["read", "domains=a/b"],
        ["read", "domains=[a]"], ["read", "domains=a", "domains=b"],
        *(
            ["read", "domains=*", f"rate={rate}"] for rate in ("0/s", "10", "-1/s", "1/d", "1e9/s")
        ),
        *(
            ["read", "domains=*", f"until={day}"] for day in ("2027", "2027-02-30", "20270131", "tomorrow")
        ),
        ["read", "domains=*", "name", "of=team"], ["read", "domains=*", "0" * 64],
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused_and_not_passed_over(words: list[str]) -> None:
    with pytest.raises(ValueError):
        parse_grant("id", words)


def test_no_key_in_a_wrong_place_is_repeated() -> None:
    with pytest.raises(ValueError) as refused:
        parse_grant("id", ["read", "isk_secret=1"])
    assert "isk_secret" not in str(refused.value)


def test_nobody_gets_in_before_its_key_was_checked() -> None:
    with pytest.raises(Unauthorized):
        NOBODY.check_domain("default")
    with pytest.raises(Forbidden):
        NOBODY.check_scope("read")
    ANYBODY.check_scope("admin")
    ANYBODY.check_domain("default")


def test_a_domain_that_is_not_granted_is_forbidden_in_the_same_words_whether_it_exists() -> None:
    grant = parse_grant("id", ["read", "domains=a"])
    with pytest.raises(Forbidden, match="may not use the domain 'b'"):
        grant.check_domain("b")


def line(key: str, rest: str = "read domains=*") -> str:
    return f"{hashlib.sha256(key.encode()).hexdigest()} {rest}\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "keys").write_text(line("old"))
    return tmp_path / "keys"


def test_a_key_is_found_by_itself_and_not_by_its_hash(path: Path) -> None:
    keys = Keys(path)
    assert keys.find("old") is not None
    for other in ("", "olD", "old ", "\ud800", "é", hashlib.sha256(b"old").hexdigest()):
        assert keys.find(other) is None


def test_a_kubernetes_secret_is_swapped_by_links_even_to_a_file_of_the_same_time(tmp_path: Path) -> None:
    for name, key in (("..2024_01", "new"), ("..2024_02", "old")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "keys").write_text(line(key))
        os.utime(tmp_path / name / "keys", (1, 1))  # their sizes are the same, too
    (tmp_path / "..data").symlink_to("..2024_02")
    (tmp_path / "keys").symlink_to("..data/keys")
    keys = Keys(tmp_path / "keys")
    (tmp_path / "..data_tmp").symlink_to("..2024_01")
    (tmp_path / "..data_tmp").replace(tmp_path / "..data")
    keys.look()
    assert keys.find("new") is not None
    assert keys.find("old") is None


@pytest.mark.parametrize(
    "broken",
    [None, b"isk_secret read\n", b"\xff\xfe", line("new", "read").encode(), line("new").encode() * 2],
)
def test_a_file_that_is_broken_or_gone_keeps_the_old_keys_and_says_so_without_a_word_of_it(
    path: Path, broken: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    keys = Keys(path)
    path.unlink() if broken is None else path.write_bytes(broken)
    caplog.set_level(logging.DEBUG)
    for _ in range(3):
        keys.look()
    assert not keys.valid
    assert keys.find("old") is not None
    assert keys.find("new") is None
    assert len(caplog.records) == 1  # not at every look
    assert "stay in force" in caplog.text
    assert "secret" not in caplog.text
    assert hashlib.sha256(b"new").hexdigest()[:8] not in caplog.text
    path.write_text(line("new"))
    keys.look()
    assert keys.valid
    assert keys.find("new") is not None
    assert "is valid again" in caplog.text


def test_a_file_that_is_cut_anywhere_grants_nothing_more_also_before_another_line(path: Path) -> None:
    """As a full disk or a copy in progress leaves it; the options of the next line must not become the cut one's."""
    whole = line("old", "read domains=team-a-* rate=100/m team a")
    path.write_text(whole)
    keys = Keys(path)
    for end in range(1, len(whole) - 1):
        path.write_text(whole[:end])
        keys.look()
        assert not keys.valid, whole[:end]
        grant = keys.find("old")
        assert grant is not None
        assert (grant.patterns, str(grant.rate), grant.name) == (("team-a-*",), "100 texts a minute", "team a")
        path.write_text(whole[:end] + line("new", "read,calibrate domains=* rate=1/h"))
        with pytest.raises(ValueError, match="line 1"):
            Keys(path)


def test_an_empty_file_lets_nobody_in(path: Path) -> None:
    keys = Keys(path)
    path.write_text("# nobody\n")
    keys.look()
    assert keys.valid
    assert keys.find("old") is None


def test_a_broken_file_at_the_start_is_refused_naming_the_line(path: Path) -> None:
    path.write_text(line("old") + "\n# note\nnonsense\n")
    with pytest.raises(ValueError, match="line 4: expected"):
        Keys(path)


def test_a_removed_key_is_taken_back_within_a_second(path: Path) -> None:
    async def watched() -> None:
        keys = Keys(path)
        watching = asyncio.create_task(keys.watch())
        await asyncio.to_thread(path.write_text, line("new"))
        async with asyncio.timeout(20):
            while keys.find("new") is None:  # noqa: ASYNC110 - a file sends no event
                await asyncio.sleep(0.01)
        assert keys.find("old") is None
        watching.cancel()

    asyncio.run(watched())
    assert LOOK_SECONDS <= 1


def test_a_key_is_refused_after_its_last_day_and_told_so(path: Path) -> None:
    today = datetime.now(UTC).date()
    keys = {}
    for days in (1, 0, -1):
        path.write_text(line("a", f"read domains=* until={today + timedelta(days)}"))
        keys[days] = Keys(path)
    assert all(keys[days].identify("Bearer a").may_use("default") for days in (1, 0))
    with pytest.raises(Unauthorized, match=f"was valid until {today - timedelta(1)}"):
        keys[-1].identify("Bearer a")


READ = frozenset({"read"})


class Account:
    """One key's limits; `now` is their clock (s)."""

    def __init__(self, texts: int, seconds: int) -> None:
        self.now = 0.0
        self.limits = Limits(clock=lambda: self.now)
        self.grant = Grant("a", READ, rate=Rate(texts, seconds))

    def take(self, texts: int) -> int:
        """The seconds to wait; 0: admitted."""
        try:
            asyncio.run(self.limits.admit(self.grant, texts))
        except Overloaded as refused:
            return refused.retry_after
        return 0

    def owe(self, texts: int) -> None:
        asyncio.run(self.limits.owe(self.grant, texts))


def test_a_full_account_gives_a_periods_texts_at_once_and_then_the_rate() -> None:
    account = Account(60, 60)
    assert [account.take(30) for _ in range(2)] == [0, 0]
    assert account.take(1) == 1
    account.now = 1.0
    assert account.take(1) == 0
    account.now = 2.0
    assert account.take(3) == 2
    account.now = 100.0
    assert account.take(63) == 0  # more than it holds: passes when full
    assert account.take(1) == 4  # and is paid off


def test_a_look_takes_nothing_and_is_refused_if_no_text_is_left() -> None:
    account = Account(10, 1)
    assert [account.take(texts) for texts in (0, 10)] == [0, 0]
    assert account.take(0) == 1
    account.now = 0.1
    assert [account.take(texts) for texts in (0, 1)] == [0, 0]


@given(st.integers(1, 50), st.lists(st.tuples(st.floats(0, 3), st.integers(1, 100)), max_size=30))
def test_no_sequence_of_requests_gets_more_than_rate_and_burst(texts: int, asked: list[tuple[float, int]]) -> None:
    """In any time, one period's texts, the rate, and at most one larger request pass."""
    account, passed, largest = Account(texts, 1), 0, 0
    for pause, count in asked:
        account.now += pause
        if account.take(count) == 0:
            passed, largest = passed + count, max(largest, count)
    assert passed <= texts * (1 + account.now) + max(0, largest - texts) + 1e-3


@given(st.integers(1, 50), st.integers(1, 200), st.floats(0, 5))
def test_a_caller_who_waits_as_long_as_told_passes(texts: int, count: int, later: float) -> None:
    account = Account(texts, 60)
    assert account.take(count) == 0
    account.now = later
    wait = account.take(count)
    account.now += wait
    assert wait == 0 or account.take(count) == 0


def test_a_new_rate_in_the_file_holds_at_once() -> None:
    account = Account(1, 3600)
    assert account.take(1) == 0
    account.grant = Grant("a", READ, rate=Rate(5, 1))
    assert [account.take(texts) for texts in (5, 1)] == [0, 1]


def test_a_key_without_a_rate_may_send_anything() -> None:
    limits = Limits(clock=lambda: 0.0)
    for _ in range(3):
        asyncio.run(limits.admit(Grant("a", READ), 10**6))


def test_what_a_request_owes_is_paid_off_first_and_no_more_is_given_back_than_the_account_holds() -> None:
    account = Account(10, 1)
    account.take(1)
    account.owe(29)
    assert account.take(1) == 3
    account.now = 2.2
    assert account.take(1) == 0
    account.owe(-100)
    assert [account.take(texts) for texts in (10, 1)] == [0, 1]


TIMEOUT = 2.0  # s; a machine that is busy with other tests must not look like a Redis that is away


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


async def test_two_processes_share_one_rate(pair: list[Limits]) -> None:
    grant = Grant("a", READ, rate=Rate(100, 3600))
    let = [await passed(pair[turn % 2], grant, 10) for turn in range(14)]
    assert let == [True] * 10 + [False] * 4
    assert await passed(pair[0], Grant("b", READ, rate=Rate(100, 3600)), 10)  # another key's is its own
    with pytest.raises(Overloaded, match="100 texts an hour") as refused:
        await pair[1].admit(grant, 10)
    assert 300 < refused.value.retry_after <= 360


async def test_many_at_once_get_no_more_than_the_rate(pair: list[Limits]) -> None:
    """The script is one step: no two requests see the same tokens."""
    grant = Grant("a", READ, rate=Rate(50, 3600))
    let = await asyncio.gather(*(passed(pair[turn % 2], grant) for turn in range(80)))
    assert sum(let) == 50
    assert not any(limits.fallbacks for limits in pair)


async def test_the_bucket_fills_at_its_rate_and_a_large_request_is_paid_off(pair: list[Limits]) -> None:
    grant = Grant("a", READ, rate=Rate(20, 1))
    began = time.monotonic()
    assert await passed(pair[0], grant, 30)  # more than it holds, and it was full
    async with asyncio.timeout(10):
        while not await passed(pair[1], grant, 1):  # noqa: ASYNC110 - time alone fills it
            await asyncio.sleep(0.02)
    assert time.monotonic() - began > 10 / 20  # 10 texts were owed, at 20 a second
    assert not await passed(pair[0], grant, 19)


async def test_entries_go_by_themselves_and_name_no_key(pair: list[Limits], redis_server: RedisServer) -> None:
    await pair[0].admit(Grant("0123456789abcdef", READ, rate=Rate(10, 60)), 3)
    with sync_redis.Redis.from_url(redis_server.url, decode_responses=True) as redis:
        names = redis.keys("*")
        assert isinstance(names, list)
        assert names == [f"{PREFIX}0123456789abcdef:10/60"]
        assert 0 < int(redis.pttl(names[0])) <= 18_000  # ms; 3 texts at 10 a minute


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
