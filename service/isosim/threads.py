"""Threads for work that must not wait for other work: calls of the model store have their own pool and a deadline.

A store may hang: a volume whose server is away, a bucket that does not answer, a process that was stopped while it
held a lock. Its callers are then answered 503, and scoring, which has threads of its own, goes on.
"""

import asyncio
import contextvars
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

from isosim.errors import Unavailable

P = ParamSpec("P")
T = TypeVar("T")

CALLS = 32  # calls of the store under way in a process; each is a thread that mostly waits. Unmeasured
DEADLINE = 10.0  # s; a bucket is given up after two attempts of 5 s (store/blobs.py)
MARGIN = 2.0  # s before its deadline at which a call gives up what it waits for
LONG = 600.0  # s; for calls that move a file of 100 MB
FEW = 64  # scoring this many texts, or parsing 64 kB of JSON (1 ms), is faster than handing it to a thread


_until: contextvars.ContextVar[float] = contextvars.ContextVar("until", default=math.inf)  # monotonic, s


def time_left() -> float:
    """Seconds that the current call of the store may still take: what was answered 503 must not be done later."""
    return _until.get() - MARGIN - time.monotonic()


class Threads:
    """A pool of threads; waits as long as a call takes."""

    def __init__(self, name: str, size: int | None = None) -> None:  # None: cores + 4, at most 32
        self._pool = ThreadPoolExecutor(size, name)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def __call__(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        call = partial(contextvars.copy_context().run, function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    async def sized(self, size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls a function here if there is little to do: at most FEW texts, pairs or kilobytes of JSON."""
        return await self(function, *args, **kwargs) if size > FEW else function(*args, **kwargs)


class Pace:
    """Lets one large step in an iteration of the event loop, which then reads what else has arrived."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def __call__(self) -> None:
        """Waits for a turn. Called before a step for more than FEW texts or kilobytes."""
        async with self._turn:
            await asyncio.sleep(0)


class StoreCalls:
    """Runs calls of the model store in a bounded number of threads, each for a bounded time.

    A call that is given up keeps its thread until it ends by itself, so there are never more than `calls`.
    """

    def __init__(self, calls: int = CALLS, deadline: float = DEADLINE) -> None:
        self.deadline = deadline
        self._pool = ThreadPoolExecutor(calls, "store")
        self._free = threading.Semaphore(calls)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def __call__(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.within(self.deadline, function, *args, **kwargs)

    async def within(self, seconds: float, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls a function in a thread.

        Raises:
            Unavailable: all threads are taken, or the call has not ended after `seconds`; a write that waits for no
                lock may still take effect.
        """
        if not self._free.acquire(blocking=False):
            raise Unavailable("too many calls wait for the model store; try again later")
        context = contextvars.copy_context()
        context.run(_until.set, time.monotonic() + seconds)
        call = self._pool.submit(partial(context.run, function, *args, **kwargs))
        call.add_done_callback(self._ended)
        waited = asyncio.wrap_future(call)
        waited.add_done_callback(_seen)
        done, _ = await asyncio.wait([waited], timeout=seconds)
        if not done:
            raise silent(seconds)
        return waited.result()

    def _ended(self, call: "Future[Any]") -> None:
        self._free.release()


def _seen(waited: "asyncio.Future[Any]") -> None:
    """Marks an exception as retrieved: the caller may have left."""
    if not waited.cancelled():
        waited.exception()


class Turns:
    """Calls of the store of one kind, a few at a time; the others wait for their turn, at most the calls' deadline."""

    def __init__(self, calls: "StoreCalls | Turns", size: int) -> None:
        self.calls = calls
        self.deadline: float = calls.deadline
        self._turns = asyncio.Semaphore(size)

    async def __call__(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Raises Unavailable as `StoreCalls` does, also if no turn comes."""
        try:
            await asyncio.wait_for(self._turns.acquire(), self.deadline)
        except TimeoutError:
            raise silent(self.deadline) from None
        try:
            return await self.calls(function, *args, **kwargs)
        finally:
            self._turns.release()


def silent(seconds: float) -> Unavailable:
    return Unavailable(f"the model store has not answered for {seconds:g} s; try again later")
