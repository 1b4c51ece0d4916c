"""The client for asyncio: the same methods, to be awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

import httpx2

from . import _calibrating, _domains, _scoring
from ._answers import Job
from ._call import Call, check_status
from ._client import PATIENT
from ._following import Following
from ._http import TIMEOUT, request, settings, translated
from ._method import documented
from ._progress import bar
from ._retries import Retries, Tries
from .errors import IsosimError

P = ParamSpec("P")
T = TypeVar("T")


def sends(build: Callable[P, Call[T]]) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """A method that sends what `build` describes and returns what it reads."""

    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._send(build(*args, **kwargs))

    return documented(method, build, "AsyncClient")


async def beside_the_loop(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Chunks, each made in a thread: a file, or the caller's iterable, may take its time."""
    while chunk := await asyncio.to_thread(next, chunks, b""):
        yield chunk


class AsyncClient:
    """`Client` for asyncio: the same arguments, the same methods, each awaited. Use it in an `async with`.

    Args:
        base_url: the server's address, with the path below which a gateway serves it, if any.
        api_key: sent as `Authorization: Bearer`.
        timeout: seconds that the server may be silent in one request; 5 at most to connect.
        retries: how patiently requests are sent again.
        transport: httpx2's, for certificates, proxies and tests.
        sleep: waits between tries; for tests.
    """

    def __init__(
        self,
        base_url: str = "http://127.0.0.1:8000",
        api_key: str | None = None,
        *,
        timeout: float = TIMEOUT,
        retries: Retries = PATIENT,
        transport: httpx2.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._timeout, self._retries, self._sleep = timeout, retries, sleep
        self._http = httpx2.AsyncClient(**settings(base_url, api_key, transport, httpx2.AsyncBaseTransport))

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._http.base_url)!r})"

    async def close(self) -> None:
        await self._http.aclose()

    async def _send(self, call: Call[T]) -> T:
        tries = Tries(self._retries)
        while True:
            try:
                content = None if call.upload is None else beside_the_loop(call.upload.chunks())
                with translated():
                    response = await self._http.send(request(self._http, call, tries.timeout(self._timeout), content))
                answer = call.read(response.status_code, response.headers, response.content)
            except IsosimError as error:
                pause = tries.pause_after(error, call.repeatable())
                if pause is not None:
                    await self._sleep(pause)
                    continue
                if call.rescue is None:
                    raise
                answer = call.rescue(error)
            if call.then is None:
                return answer
            call = call.then(answer)

    similarity = sends(_scoring.similarity)
    embed = sends(_scoring.embed)
    rerank = sends(_scoring.rerank)
    ready = sends(_scoring.ready)

    calibrate = sends(_calibrating.calibrate)
    add_labels = sends(_calibrating.add_labels)
    job = sends(_calibrating.job)
    jobs = sends(_calibrating.jobs)
    cancel = sends(_calibrating.cancel)
    retry = sends(_calibrating.retry)

    domains = sends(_domains.domains)
    domain = sends(_domains.domain)
    version = sends(_domains.version)
    threshold = sends(_domains.threshold)
    promote = sends(_domains.promote)
    rollback = sends(_domains.rollback)
    delete_domain = sends(_domains.delete_domain)
    delete_version = sends(_domains.delete_version)

    def events(self, job: Job | str, *, timeout: float | None = None) -> AsyncIterator[Job]:
        """As `Client.events`, for `async for`."""
        return self._follow(Following(job, self._retries, timeout))

    async def _follow(self, following: Following) -> AsyncIterator[Job]:
        while not following.ended:
            failure = None
            try:
                async with self._open(following.connect(), following.seconds_of_silence()) as chunks:
                    async for chunk in chunks:
                        for state in following.feed(chunk):
                            yield state
            except IsosimError as error:
                failure = error
            if not following.ended:
                await self._sleep(following.pause(failure))

    @asynccontextmanager
    async def _open(self, call: Call[Any], timeout: float) -> AsyncIterator[AsyncIterator[bytes]]:
        with translated():
            response = await self._http.send(request(self._http, call, timeout, None), stream=True)
            try:
                if response.status_code != 200:
                    check_status(response.status_code, response.headers, await response.aread())
                yield response.aiter_bytes()
            finally:
                await response.aclose()

    async def wait(self, job: Job | str, *, progress: bool = True, timeout: float | None = None) -> Job:
        """As `Client.wait`. Cancelling the task leaves the job alone."""
        following = Following(job, self._retries, timeout)
        with bar(progress) as show:
            async for state in self._follow(following):
                show(state)
        return following.outcome()
