"""The token bucket and the count of requests under way, on a clock of the test's own."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isosim.access.grants import Grant, LocalLimits, Rate, TokenBucket, nothing
from isosim.errors import Overloaded

READ = frozenset({"read"})


def test_a_full_bucket_gives_a_periods_texts_at_once_and_then_the_rate() -> None:
    bucket = TokenBucket(Rate(10, 1), 0.0)
    assert [bucket.take(5, 0.0) for _ in range(2)] == [0, 0]
    assert bucket.take(1, 0.0) == pytest.approx(0.1)
    assert bucket.take(1, 0.1) == 0
    assert bucket.take(3, 0.2) == pytest.approx(0.2)
    assert bucket.take(11, 100.0) == 0  # more than it holds: passes when full
    assert bucket.take(1, 100.0) == pytest.approx(0.2)  # and is paid off


def test_a_look_takes_nothing_and_is_refused_if_no_text_is_left() -> None:
    bucket = TokenBucket(Rate(10, 1), 0.0)
    assert bucket.take(0, 0.0) == 0
    assert bucket.take(10, 0.0) == 0
    assert bucket.take(0, 0.0) == pytest.approx(0.1)
    assert bucket.take(0, 0.1) == 0
    assert bucket.take(1, 0.1) == 0


def test_a_refusal_takes_nothing() -> None:
    bucket = TokenBucket(Rate(10, 1), 0.0)
    bucket.take(10, 0.0)
    for _ in range(50):
        assert bucket.take(10, 0.5) > 0
    assert bucket.take(5, 0.5) == 0


@given(
    st.integers(1, 50),
    st.lists(st.tuples(st.floats(0, 3), st.integers(1, 100)), max_size=60),
)
def test_no_sequence_of_requests_gets_more_than_rate_and_burst(texts: int, asked: list[tuple[float, int]]) -> None:
    """Whatever is asked when: in any time there pass the bucket, the rate, and at most one request beyond."""
    bucket, now, passed, largest = TokenBucket(Rate(texts, 1), 0.0), 0.0, 0, 0
    for pause, count in asked:
        now += pause
        if bucket.take(count, now) == 0:
            passed, largest = passed + count, max(largest, count)
    assert passed <= texts * (1 + now) + max(0, largest - texts) + 1e-6


@given(st.integers(1, 50), st.integers(1, 200), st.floats(0, 5))
def test_whoever_waits_as_long_as_told_passes(texts: int, count: int, later: float) -> None:
    bucket = TokenBucket(Rate(texts, 60), 0.0)
    assert bucket.take(count, 0.0) == 0
    wait = bucket.take(count, later)
    assert wait == 0 or bucket.take(count, later + wait + 1e-6) == 0


def admit(limits: LocalLimits, grant: Grant, texts: int = 1) -> object:
    return asyncio.run(limits.admit(grant, texts))


def test_requests_under_way_are_counted_until_they_are_released() -> None:
    refused: list[str] = []
    limits = LocalLimits(on_refused=refused.append)
    grant = Grant("a", READ, concurrent=2)
    first, _ = limits.take(grant, 1), limits.take(grant, 1)
    with pytest.raises(Overloaded, match="2 requests under way"):
        limits.take(grant, 1)
    limits.take(Grant("b", READ, concurrent=1), 1)  # another key's count is its own
    first()
    first()  # twice is once
    limits.take(grant, 1)
    with pytest.raises(Overloaded):
        limits.take(grant, 1)
    assert refused == ["concurrent", "concurrent"]


def test_a_request_refused_for_its_company_costs_no_texts() -> None:
    limits = LocalLimits(clock=lambda: 0.0)
    grant = Grant("a", READ, rate=Rate(2, 1), concurrent=1)
    release = limits.take(grant, 1)
    for _ in range(9):
        with pytest.raises(Overloaded, match="under way"):
            limits.take(grant, 1)
    release()
    limits.take(grant, 1)()
    with pytest.raises(Overloaded, match="2 texts a second") as refused:
        limits.take(grant, 1)
    assert refused.value.retry_after == 1


def test_the_wait_is_told_in_whole_seconds() -> None:
    limits = LocalLimits(clock=lambda: 0.0)
    grant = Grant("a", READ, rate=Rate(60, 60))
    limits.take(grant, 60)
    with pytest.raises(Overloaded, match="try again in 30 s") as refused:
        limits.take(grant, 30)
    assert refused.value.retry_after == 30


def test_a_new_rate_in_the_file_holds_at_once() -> None:
    limits = LocalLimits(clock=lambda: 0.0)
    limits.take(Grant("a", READ, rate=Rate(1, 1)), 1)
    limits.take(Grant("a", READ, rate=Rate(5, 1)), 5)
    with pytest.raises(Overloaded):
        limits.take(Grant("a", READ, rate=Rate(5, 1)), 1)


def test_a_key_without_limits_is_not_counted() -> None:
    assert admit(LocalLimits(), Grant("a", READ), 10**6) is nothing


def test_what_a_request_owes_is_paid_off_before_the_next_and_what_is_given_back_is_no_more_than_there_was() -> None:
    now = 0.0
    limits, grant = LocalLimits(clock=lambda: now), Grant("a", READ, rate=Rate(10, 1))
    admit(limits, grant, 1)
    asyncio.run(limits.owe(grant, 29))
    with pytest.raises(Overloaded, match="in 3 s"):
        admit(limits, grant, 1)
    now = 2.2
    admit(limits, grant, 1)
    asyncio.run(limits.owe(grant, -100))
    admit(limits, grant, 10)
    with pytest.raises(Overloaded):
        admit(limits, grant, 1)
