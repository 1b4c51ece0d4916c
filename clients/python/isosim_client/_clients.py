"""The two clients.

Each method is written once, as a function that makes the requests: see `_scoring`, `_calibrating`, `_matching`,
`_domains` and `_following`. `Client` runs them to their end, `AsyncClient` returns what is awaited.
"""

import asyncio
import functools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, Generic, ParamSpec, TypeVar, overload

import httpx2

from . import _calibrating, _domains, _following, _matching, _scoring
from ._call import Answered, Streamed
from ._http import TIMEOUT, settings
from ._retries import Retries
from ._sending import Blocking, Sender, Suspending, each, finished

P = ParamSpec("P")
T = TypeVar("T")
B = TypeVar("B")
A = TypeVar("A")
PATIENT = Retries()


class Method(Generic[P, B, A]):
    """A method of both clients. `B`: what `Client` returns; `A`: what `AsyncClient` returns."""

    def __init__(self, build: Callable[P, Any], run: str) -> None:
        self.build, self.run = build, run

    @overload
    def __get__(self, client: None, owner: type) -> Callable[P, Any]: ...
    @overload
    def __get__(self, client: "Client", owner: type) -> Callable[P, B]: ...
    @overload
    def __get__(self, client: "AsyncClient", owner: type) -> Callable[P, A]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        if client is None:
            return self.build
        run = getattr(client, self.run)

        @functools.wraps(self.build)
        def call(*args: Any, **kwargs: Any) -> Any:
            return run(self.build(*args, **kwargs))

        return call


def answered(build: Callable[P, Answered[T]]) -> Method[P, T, Coroutine[Any, Any, T]]:
    return Method(build, "_answer")


def streamed(build: Callable[P, Streamed[T]]) -> Method[P, Iterator[T], AsyncIterator[T]]:
    return Method(build, "_stream")


class Methods:
    """The methods of both clients."""

    _http: httpx2.Client | httpx2.AsyncClient

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._http.base_url)!r})"

    similarity = answered(_scoring.similarity)
    embed = answered(_scoring.embed)
    rerank = answered(_scoring.rerank)
    ready = answered(_scoring.ready)

    calibrate = answered(_calibrating.calibrate)
    add_labels = answered(_calibrating.add_labels)
    job = answered(_calibrating.job)
    jobs = answered(_calibrating.jobs)
    cancel = answered(_calibrating.cancel)
    events = streamed(_following.events)
    wait = answered(_following.wait)

    match = streamed(_following.match)
    start_match = answered(_matching.start_match)
    wait_match = answered(_following.wait_match)
    matches = answered(_matching.matches)
    match_state = answered(_matching.match_state)
    result = streamed(_matching.result)
    pairs_to_judge = answered(_matching.pairs_to_judge)
    judge = answered(_matching.judge)
    delete_match = answered(_matching.delete_match)
    check_searches = answered(_matching.check_searches)

    domains = answered(_domains.domains)
    domain = answered(_domains.domain)
    version = answered(_domains.version)
    threshold = answered(_domains.threshold)
    thresholds = answered(_domains.thresholds)
    save_threshold = answered(_domains.save_threshold)
    delete_threshold = answered(_domains.delete_threshold)
    promote = answered(_domains.promote)
    rollback = answered(_domains.rollback)
    delete_domain = answered(_domains.delete_domain)
    delete_version = answered(_domains.delete_version)


class Client(Methods):
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
        self._http: httpx2.Client = httpx2.Client(**settings(base_url, api_key, transport, httpx2.BaseTransport))
        self._sender = Sender(Blocking(self._http, sleep), timeout, retries)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections. A closed client cannot be used again."""
        self._http.close()

    def _answer(self, requests: Answered[T]) -> T:
        return finished(requests(self._sender))

    def _stream(self, requests: Streamed[T]) -> Iterator[T]:
        return each(requests(self._sender))


class AsyncClient(Methods):
    """`Client` for asyncio, with the same methods and arguments. Use it in an `async with` statement.

    Await each method, but iterate over `events` with `async for`. `Client` describes the arguments of the constructor.

    Args:
        transport: an asynchronous httpx2 transport.
        sleep: coroutine function that waits between attempts; tests replace it.
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
        self._http: httpx2.AsyncClient = httpx2.AsyncClient(
            **settings(base_url, api_key, transport, httpx2.AsyncBaseTransport)
        )
        self._sender = Sender(Suspending(self._http, sleep), timeout, retries)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections. A closed client cannot be used again."""
        await self._http.aclose()

    def _answer(self, requests: Answered[T]) -> Coroutine[Any, Any, T]:
        return requests(self._sender)

    def _stream(self, requests: Streamed[T]) -> AsyncGenerator[T, None]:
        return requests(self._sender)
