"""Everything that depends on httpx2: settings, connections, and the translation of its errors."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import httpx2

from ._call import Call, Response
from ._upload import as_json
from ._version import __version__
from .errors import ConnectionFailed, ConnectionLost, NoAnswer, TimedOut

T = TypeVar("T")

CONNECT_SECONDS = 5.0  # httpx2's default; connecting to a running server takes less
# Seconds without data from the server after which a request fails. Unmeasured; 512 pairs on two cores should take less.
TIMEOUT = 30.0

# httpx2's errors -> (our error, what happened). For an error, the entry of its most specific class applies.
TABLE: dict[type[httpx2.RequestError], tuple[type[NoAnswer], str]] = {
    httpx2.ConnectError: (ConnectionFailed, "no connection"),
    httpx2.ConnectTimeout: (ConnectionFailed, "no connection in time"),
    httpx2.PoolTimeout: (ConnectionFailed, "no connection of the pool became free in time"),
    httpx2.ProxyError: (ConnectionFailed, "the proxy made no connection"),
    httpx2.NetworkError: (ConnectionLost, "the connection broke"),
    httpx2.RemoteProtocolError: (ConnectionLost, "the connection broke"),
    httpx2.TimeoutException: (TimedOut, "no answer in time"),
    httpx2.RequestError: (NoAnswer, "the request could not be made"),
}


@contextmanager
def translated() -> Iterator[None]:
    """Translates every error of httpx2 into one of this package."""
    try:
        yield
    except httpx2.RequestError as error:
        kind, what = next(TABLE[base] for base in type(error).__mro__ if base in TABLE)
        where = address(error)
        failed = kind is ConnectionFailed
        remedy = "; is the server running (isosim serve), and is base_url its address?" if failed else ""
        place = f" {'to' if failed else 'from'} {where}" if where else ""
        raise kind(f"{what}{place}{f': {error}' if str(error) else ''}{remedy}") from error


def address(error: httpx2.RequestError) -> str:
    """The server's address for an error message, without user name and password; empty if it is not known."""
    try:
        return f"{error.request.url.scheme}://{error.request.url.netloc.decode()}"
    except RuntimeError:  # the error has no request
        return ""


def settings(base_url: str, api_key: str | None, transport: object, kind: type) -> dict[str, Any]:
    """Arguments for httpx2's clients.

    Raises:
        ValueError: the address is not http or https, or the key cannot be sent in a header. The message does not
            contain the key.
        TypeError: the transport is not a transport of httpx2, but for example of httpx.
    """
    if not re.match(r"https?://[^/]", base_url):
        raise ValueError(f"base_url {base_url!r}: expected http://host:port or https://host")
    if transport is not None and not isinstance(transport, kind):
        given = f"{type(transport).__module__}.{type(transport).__qualname__}"
        raise TypeError(f"transport: expected an httpx2.{kind.__name__}, got {given}; transports of httpx do not work")
    headers = {"user-agent": f"isosim-client/{__version__}", "accept": "application/json"}
    if api_key is not None:
        if not re.fullmatch(r"[\x21-\x7e]+", api_key):
            raise ValueError("api_key: expected printable ASCII without spaces; does it end in a line break?")
        headers["authorization"] = f"Bearer {api_key}"
    return {"base_url": base_url, "headers": headers, "transport": transport}


def request(
    http: httpx2.Client | httpx2.AsyncClient,
    call: Call[Any],
    timeout: float,
    content: Iterator[bytes] | AsyncIterator[bytes] | None,
) -> httpx2.Request:
    """The httpx2 request of a call; `content` is the body of the call's upload, or None."""
    headers, body = dict(call.headers), content
    if call.upload is not None:
        headers["content-type"] = call.upload.content_type
    elif call.body is not None:
        headers["content-type"] = "application/json"
    return http.build_request(
        call.method,
        call.path,
        params=dict(call.query),
        headers=headers,
        content=as_json(call.body) if body is None and call.body is not None else body,
        timeout=httpx2.Timeout(timeout, connect=min(timeout, CONNECT_SECONDS)),
    )


class Blocking:
    """Connections of `Client`."""

    def __init__(self, http: httpx2.Client, sleep: Callable[[float], None]) -> None:
        self.http, self._sleep = http, sleep

    @asynccontextmanager
    async def open(self, call: Call[Any], timeout: float) -> AsyncIterator[Response]:
        content = None if call.upload is None else call.upload.chunks()
        with translated():
            response = self.http.send(request(self.http, call, timeout, content), stream=True)
            try:
                yield response.status_code, response.headers, in_turn(response.iter_bytes())
            finally:
                response.close()

    async def sleep(self, seconds: float) -> None:
        self._sleep(seconds)


class Suspending:
    """Connections of `AsyncClient`."""

    def __init__(self, http: httpx2.AsyncClient, sleep: Callable[[float], Awaitable[None]]) -> None:
        self.http, self._sleep = http, sleep

    @asynccontextmanager
    async def open(self, call: Call[Any], timeout: float) -> AsyncIterator[Response]:
        content = None if call.upload is None else beside_the_loop(call.upload.chunks())
        with translated():
            response = await self.http.send(request(self.http, call, timeout, content), stream=True)
            try:
                yield response.status_code, response.headers, response.aiter_bytes()
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
