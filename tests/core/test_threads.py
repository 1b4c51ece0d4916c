"""Calls of the store are bounded in number and time, and a call that was given up waits for no lock any more."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from isosim.errors import Unavailable
from isosim.threads import Pace, StoreCalls, Turns


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


def test_between_two_large_steps_the_event_loop_does_other_work() -> None:
    async def test() -> None:
        pace, steps = Pace(), list[str]()

        async def large() -> None:
            await pace()
            steps.append("large")

        def other() -> None:
            steps.append("other")
            asyncio.get_running_loop().call_soon(other)

        other()
        await asyncio.gather(*[large() for _ in range(5)])
        assert steps.count("large") == 5
        assert "large large" not in " ".join(steps)

    asyncio.run(test())
