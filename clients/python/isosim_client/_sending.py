"""Sends requests and repeats them. Written once, as coroutines: what they await blocks in `Client` (`Blocking`), and
suspends in `AsyncClient` (`Suspending`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx2

from ._call import Call, check_status
from ._http import request, translated
from ._retries import Retries, Tries
from .errors import IsosimError

T = TypeVar("T")


class Sender:
    """Sends the requests of a client. `timeout`: seconds without data from the server, after which a request fails."""

    def __init__(self, connections: Blocking | Suspending, timeout: float, retries: Retries) -> None:
        self.open, self.sleep = connections.open, connections.sleep
        self.connections, self.timeout, self.retries = connections, timeout, retries

    async def send(self, call: Call[T]) -> T:
        """The parsed answer, after retries."""
        tries = Tries(self.retries)
        while True:
            try:
                response = await self.connections.ask(call, tries.timeout(self.timeout))
                return call.read(response.status_code, response.headers, response.content)
            except IsosimError as error:
                pause = tries.pause_after(error, call.repeatable())
                if pause is None:
                    raise
            await self.sleep(pause)


class Blocking:
    """Connections of `Client`."""

    def __init__(self, http: httpx2.Client, sleep: Callable[[float], None]) -> None:
        self.http, self._sleep = http, sleep

    async def ask(self, call: Call[Any], timeout: float) -> httpx2.Response:
        content = None if call.upload is None else call.upload.chunks()
        with translated():
            return self.http.send(request(self.http, call, timeout, content))

    @asynccontextmanager
    async def open(self, call: Call[Any], timeout: float) -> AsyncIterator[AsyncIterator[bytes]]:
        with translated():
            response = self.http.send(request(self.http, call, timeout, None), stream=True)
            try:
                if response.status_code != 200:
                    check_status(response.status_code, response.headers, response.read())
                yield in_turn(response.iter_bytes())
            finally:
                response.close()

    async def sleep(self, seconds: float) -> None:
        self._sleep(seconds)


class Suspending:
    """Connections of `AsyncClient`."""

    def __init__(self, http: httpx2.AsyncClient, sleep: Callable[[float], Awaitable[None]]) -> None:
        self.http, self._sleep = http, sleep

    async def ask(self, call: Call[Any], timeout: float) -> httpx2.Response:
        content = None if call.upload is None else beside_the_loop(call.upload.chunks())
        with translated():
            return await self.http.send(request(self.http, call, timeout, content))

    @asynccontextmanager
    async def open(self, call: Call[Any], timeout: float) -> AsyncIterator[AsyncIterator[bytes]]:
        with translated():
            response = await self.http.send(request(self.http, call, timeout, None), stream=True)
            try:
                if response.status_code != 200:
                    check_status(response.status_code, response.headers, await response.aread())
                yield response.aiter_bytes()
            finally:
                await response.aclose()

    async def sleep(self, seconds: float) -> None:
        await self._sleep(seconds)


async def in_turn(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def beside_the_loop(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Yields chunks. Each chunk is made in a thread, because a slow file or iterable would block the event loop."""
    while chunk := await asyncio.to_thread(next, chunks, b""):
        yield chunk


def finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never suspends, because all that it awaits is `Blocking`."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError("a request of a blocking client has suspended")


def each(results: AsyncGenerator[T, None]) -> Iterator[T]:
    """The results of an asynchronous generator that never suspends."""
    try:
        while True:
            yield finished(results.__anext__())
    except StopAsyncIteration:
        return
    finally:
        finished(results.aclose())
