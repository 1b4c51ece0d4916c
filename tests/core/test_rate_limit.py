"""The account of texts of an API key, on a clock of the test's own."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from isosim.access.grants import Grant, Rate
from isosim.access.limits import Limits
from isosim.errors import Overloaded

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
