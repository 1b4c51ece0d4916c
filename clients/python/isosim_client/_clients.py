"""The two clients.

Each method is written once, as a function that builds what the method sends: see `_scoring`, `_calibrating`, `_domains`
and `_following`. Both clients get their methods from these functions. Only what waits is written twice: sending,
pausing and reading a stream.
"""

import asyncio
import functools
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import NoneType
from typing import Any, Concatenate, ParamSpec, TypeVar, get_args, get_origin

import httpx2

from . import _calibrating, _domains, _following, _matching, _scoring
from ._answers import Job, Match
from ._call import Call, check_status
from ._following import Following, Watch, bar
from ._http import TIMEOUT, request, settings, translated
from ._matching import Download, Lines, Matching
from ._retries import Retries, Tries
from .errors import IsosimError

P = ParamSpec("P")
S = TypeVar("S")  # a client
B = TypeVar("B")  # what a builder makes: a Call or a Watch
T = TypeVar("T")  # what the method returns
PATIENT = Retries()


def method(build: Callable[P, B], run: Callable[[S, B], T]) -> Callable[Concatenate[S, P], T]:
    """A method that passes its arguments to `build`, and runs what `build` makes of them."""

    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(self, build(*args, **kwargs))

    describe(call, build, run)
    return call


def coroutine_method(
    build: Callable[P, B], run: Callable[[S, B], Awaitable[T]]
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """As `method`, for a `run` that is awaited."""

    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await run(self, build(*args, **kwargs))

    describe(call, build, run)
    return call


def describe(call: Callable[..., Any], build: Callable[..., Any], run: Callable[..., Any]) -> None:
    """Gives a method the name, signature and docstring of its builder, as `help` and `inspect` show them."""
    functools.update_wrapper(call, build)
    client = run.__qualname__.rpartition(".")[0]
    call.__module__, call.__qualname__ = __name__, f"{client}.{build.__name__}"
    if client == "AsyncClient":  # the examples in the docstrings do not await
        call.__doc__ = (inspect.getdoc(build) or "").partition("\n\nExample:\n")[0]
    given = inspect.signature(build)
    answer = run.__annotations__["return"]
    if get_origin(given.return_annotation) is Call:
        (kind,) = get_args(given.return_annotation)
        answer = None if kind is NoneType else kind
    call.__annotations__ = build.__annotations__ | {"return": answer}
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    vars(call)["__signature__"] = inspect.Signature([own, *given.parameters.values()], return_annotation=answer)


class Client:
    """A client with a connection pool to one isosim server; thread-safe. Close it, or use it in a `with` statement.

    Args:
        base_url: the server's address; it may have a path, for example `https://gateway.example/isosim`.
        api_key: sent as `Authorization: Bearer`.
        timeout: seconds without data from the server, after which a request fails. Connecting may take at most 5 s.
        retries: how often and how long requests are retried.
        transport: an httpx2 transport, for your own certificates, a proxy, or tests.
        sleep: function that waits between attempts; tests replace it.

    If a request fails, the method raises an IsosimError; `help(isosim_client.errors)` lists its subclasses. If the
    failure may be temporary, the method first retries the request.

    Example:
        >>> from isosim_client import Client
        >>> with Client("http://127.0.0.1:8000") as client:
        ...     scores = client.similarity([("Printer is jammed.", "Cannot log in.")], domain="tickets")
    """

    def __init__(
        self,
        base_url: str = "http://127.0.0.1:8000",
        api_key: str | None = None,
        *,
        timeout: float = TIMEOUT,
        retries: Retries = PATIENT,
        transport: httpx2.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._timeout, self._retries, self._sleep = timeout, retries, sleep
        self._http = httpx2.Client(**settings(base_url, api_key, transport, httpx2.BaseTransport))

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._http.base_url)!r})"

    def close(self) -> None:
        """Closes the connections. A closed client cannot be used again."""
        self._http.close()

    def _send(self, call: Call[T]) -> T:
        tries = Tries(self._retries)
        while True:
            try:
                content = None if call.upload is None else call.upload.chunks()
                with translated():
                    response = self._http.send(request(self._http, call, tries.timeout(self._timeout), content))
                answer = call.read(response.status_code, response.headers, response.content)
            except IsosimError as error:
                pause = tries.pause_after(error, call.repeatable())
                if pause is not None:
                    self._sleep(pause)
                    continue
                if call.rescue is None:
                    raise
                answer = call.rescue(error)
            if call.then is None:
                return answer
            call = call.then(answer)

    def _events(self, watch: Watch) -> Iterator[Job]:
        return self._states(Following(watch, self._retries))

    def _wait(self, watch: Watch) -> Job:
        following = Following(watch, self._retries)
        with bar(watch.progress) as show:
            for state in self._states(following):
                show(state)
        found: Job = following.outcome()
        return found

    def _wait_match(self, watch: Watch) -> Match:
        with bar(watch.progress) as show:
            following = Following(watch, self._retries)
            for state in self._states(following):
                show(state)
        found: Match = following.outcome()
        return found

    def _pieces(self, download: Download) -> Iterator[bytes]:
        with self._open(download.call, self._timeout) as chunks:
            yield from chunks

    def _match(self, matching: Matching) -> Iterator[dict[str, Any]]:
        started = self._send(matching.start)
        self._wait_match(_following.wait_match(started))
        lines = Lines()
        for piece in self._pieces(_matching.result(started, **matching.view)):
            yield from lines.feed(piece)

    def _states(self, following: Following) -> Iterator[Any]:
        while not following.ended:
            failure = None
            try:
                with self._open(following.connect(), following.seconds_of_silence()) as chunks:
                    for chunk in chunks:
                        yield from following.feed(chunk)
            except IsosimError as error:
                failure = error
            if not following.ended:
                self._sleep(following.pause(failure))

    @contextmanager
    def _open(self, call: Call[Any], timeout: float) -> Iterator[Iterator[bytes]]:
        with translated():
            response = self._http.send(request(self._http, call, timeout, None), stream=True)
            try:
                if response.status_code != 200:
                    check_status(response.status_code, response.headers, response.read())
                yield response.iter_bytes()
            finally:
                response.close()

    similarity = method(_scoring.similarity, _send)
    embed = method(_scoring.embed, _send)
    rerank = method(_scoring.rerank, _send)
    ready = method(_scoring.ready, _send)

    calibrate = method(_calibrating.calibrate, _send)
    add_labels = method(_calibrating.add_labels, _send)
    job = method(_calibrating.job, _send)
    jobs = method(_calibrating.jobs, _send)
    cancel = method(_calibrating.cancel, _send)
    events = method(_following.events, _events)
    wait = method(_following.wait, _wait)

    match = method(_matching.match, _match)
    start_match = method(_matching.start_match, _send)
    wait_match = method(_following.wait_match, _wait_match)
    matches = method(_matching.matches, _send)
    match_state = method(_matching.match_state, _send)
    result = method(_matching.result, _pieces)
    pairs_to_judge = method(_matching.pairs_to_judge, _send)
    judge = method(_matching.judge, _send)
    delete_match = method(_matching.delete_match, _send)
    check_searches = method(_matching.check_searches, _send)

    domains = method(_domains.domains, _send)
    domain = method(_domains.domain, _send)
    version = method(_domains.version, _send)
    threshold = method(_domains.threshold, _send)
    thresholds = method(_domains.thresholds, _send)
    save_threshold = method(_domains.save_threshold, _send)
    delete_threshold = method(_domains.delete_threshold, _send)
    promote = method(_domains.promote, _send)
    rollback = method(_domains.rollback, _send)
    delete_domain = method(_domains.delete_domain, _send)
    delete_version = method(_domains.delete_version, _send)


class AsyncClient:
    """`Client` for asyncio, with the same methods and arguments. Use it in an `async with` statement.

    Await each method, but iterate over `events` with `async for`. `Client` describes the arguments of the constructor,
    and has examples of the methods.

    Args:
        transport: an asynchronous httpx2 transport.
        sleep: coroutine function that waits between attempts; tests replace it.

    Example:
        >>> import asyncio
        >>> from isosim_client import AsyncClient
        >>> async def calibrate(texts):
        ...     async with AsyncClient("http://127.0.0.1:8000") as client:
        ...         job = await client.calibrate(texts, domain="tickets")
        ...         async for state in client.events(job):
        ...             print(state.status, state.progress)
        ...         return await client.threshold("tickets", fmr=0.01)
        >>> with open("tickets.txt") as texts:
        ...     advice = asyncio.run(calibrate(texts))
        running 0.6
        succeeded 1.0
        >>> advice.similarity
        0.412
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

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._http.base_url)!r})"

    async def close(self) -> None:
        """Closes the connections. A closed client cannot be used again."""
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

    def _events(self, watch: Watch) -> AsyncIterator[Job]:
        return self._states(Following(watch, self._retries))

    async def _wait(self, watch: Watch) -> Job:
        following = Following(watch, self._retries)
        with bar(watch.progress) as show:
            async for state in self._states(following):
                show(state)
        found: Job = following.outcome()
        return found

    async def _wait_match(self, watch: Watch) -> Match:
        following = Following(watch, self._retries)
        with bar(watch.progress) as show:
            async for state in self._states(following):
                show(state)
        found: Match = following.outcome()
        return found

    async def _pieces(self, download: Download) -> AsyncIterator[bytes]:
        async with self._open(download.call, self._timeout) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _match(self, matching: Matching) -> AsyncIterator[dict[str, Any]]:
        started = await self._send(matching.start)
        await self._wait_match(_following.wait_match(started))
        lines = Lines()
        async for piece in self._pieces(_matching.result(started, **matching.view)):
            for pair in lines.feed(piece):
                yield pair

    async def _states(self, following: Following) -> AsyncIterator[Any]:
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

    similarity = coroutine_method(_scoring.similarity, _send)
    embed = coroutine_method(_scoring.embed, _send)
    rerank = coroutine_method(_scoring.rerank, _send)
    ready = coroutine_method(_scoring.ready, _send)

    calibrate = coroutine_method(_calibrating.calibrate, _send)
    add_labels = coroutine_method(_calibrating.add_labels, _send)
    job = coroutine_method(_calibrating.job, _send)
    jobs = coroutine_method(_calibrating.jobs, _send)
    cancel = coroutine_method(_calibrating.cancel, _send)
    events = method(_following.events, _events)
    wait = coroutine_method(_following.wait, _wait)

    match = method(_matching.match, _match)
    start_match = coroutine_method(_matching.start_match, _send)
    wait_match = coroutine_method(_following.wait_match, _wait_match)
    matches = coroutine_method(_matching.matches, _send)
    match_state = coroutine_method(_matching.match_state, _send)
    result = method(_matching.result, _pieces)
    pairs_to_judge = coroutine_method(_matching.pairs_to_judge, _send)
    judge = coroutine_method(_matching.judge, _send)
    delete_match = coroutine_method(_matching.delete_match, _send)
    check_searches = coroutine_method(_matching.check_searches, _send)

    domains = coroutine_method(_domains.domains, _send)
    domain = coroutine_method(_domains.domain, _send)
    version = coroutine_method(_domains.version, _send)
    threshold = coroutine_method(_domains.threshold, _send)
    thresholds = coroutine_method(_domains.thresholds, _send)
    save_threshold = coroutine_method(_domains.save_threshold, _send)
    delete_threshold = coroutine_method(_domains.delete_threshold, _send)
    promote = coroutine_method(_domains.promote, _send)
    rollback = coroutine_method(_domains.rollback, _send)
    delete_domain = coroutine_method(_domains.delete_domain, _send)
    delete_version = coroutine_method(_domains.delete_version, _send)


async def beside_the_loop(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Yields chunks. Each chunk is made in a thread, because a slow file or iterable would block the event loop."""
    while chunk := await asyncio.to_thread(next, chunks, b""):
        yield chunk
