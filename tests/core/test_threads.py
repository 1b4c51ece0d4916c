"""Calls of the store are bounded in number and time, and a call that was given up waits for no lock any more."""

import asyncio
import fcntl
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from isosim.errors import Unavailable
from isosim.store.artifacts import locked
from isosim.threads import MARGIN, StoreCalls, Turns, lock_patience


def run(
    test: Callable[[StoreCalls, threading.Event], Awaitable[None]], *, calls: int = 2, deadline: float = 60
) -> None:
    """Runs a test with a bounded pool and an event that ends its hanging calls."""

    async def whole() -> None:
        made, go_on = StoreCalls(calls, deadline), threading.Event()
        try:
            await test(made, go_on)
        finally:
            go_on.set()
            made.close()

    asyncio.run(whole())


def test_a_full_pool_refuses_at_once_and_a_call_that_ends_frees_its_thread() -> None:
    async def test(store: StoreCalls, go_on: threading.Event) -> None:
        hanging = [asyncio.create_task(store(go_on.wait)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="too many calls"):
            await store(int)
        go_on.set()
        assert await asyncio.gather(*hanging) == [True, True]
        assert await store(int, "3") == 3

    run(test)


def test_a_call_is_given_up_at_its_deadline_and_keeps_its_thread_until_it_ends() -> None:
    async def test(store: StoreCalls, go_on: threading.Event) -> None:
        for _ in range(2):
            with pytest.raises(Unavailable, match="has not answered"):
                await store(go_on.wait)
        with pytest.raises(Unavailable, match="too many calls"):
            await store(int)
        go_on.set()
        while True:
            try:
                assert await store(int, "3") == 3
                break
            except Unavailable:
                await asyncio.sleep(0.01)

    run(test, deadline=0.05)


def test_a_caller_that_leaves_frees_no_thread() -> None:
    async def test(store: StoreCalls, go_on: threading.Event) -> None:
        tasks = [asyncio.create_task(store(go_on.wait)) for _ in range(2)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with pytest.raises(Unavailable, match="too many calls"):
            await store(int)

    run(test)


def test_an_exception_of_the_call_reaches_its_caller_also_a_timeout() -> None:
    def fail() -> None:
        raise TimeoutError("of the call itself")

    async def test(store: StoreCalls, go_on: threading.Event) -> None:
        with pytest.raises(TimeoutError, match="of the call itself"):
            await store(fail)

    run(test)


def test_calls_of_one_kind_wait_for_their_turn_and_not_for_ever() -> None:
    async def test(store: StoreCalls, go_on: threading.Event) -> None:
        turns = Turns(store, 1)
        first = asyncio.create_task(turns(go_on.wait))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="has not answered"):
            await turns(int)
        assert await store(int) == 0  # the pool itself has room
        go_on.set()
        await asyncio.gather(first, return_exceptions=True)
        assert await turns(int) == 0

    run(test, deadline=0.05)


def test_a_call_waits_for_a_lock_only_as_long_as_its_caller_does(tmp_path: Path) -> None:
    """What was answered 503 is not done afterwards."""
    done = []

    def change() -> None:
        with locked(tmp_path / "lock"):
            done.append(1)

    async def test(store: StoreCalls, go_on: threading.Event) -> None:
        assert await store(lock_patience) == pytest.approx(1, abs=0.5)
        with (tmp_path / "lock").open("a") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            began = time.monotonic()
            with pytest.raises(Unavailable, match="held a lock"):
                await store(change)
            assert time.monotonic() - began < MARGIN + 1
        assert done == []
        await store(change)
        assert done == [1]

    run(test, deadline=MARGIN + 1)
