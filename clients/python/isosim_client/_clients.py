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
PATIENT = Retries()


class Method(Generic[P, T]):
    """A method of both clients that has one result."""

    def __init__(self, build: Callable[P, Answered[T]]) -> None:
        self.build = build

    @overload
    def __get__(self, client: None, owner: type) -> Callable[P, Answered[T]]: ...
    @overload
    def __get__(self, client: "Client", owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: "AsyncClient", owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        return self.build if client is None else bound(self.build, client._answer)


class StreamMethod(Generic[P, T]):
    """A method of both clients that yields results."""

    def __init__(self, build: Callable[P, Streamed[T]]) -> None:
        self.build = build

    @overload
    def __get__(self, client: None, owner: type) -> Callable[P, Streamed[T]]: ...
    @overload
    def __get__(self, client: "Client", owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, client: "AsyncClient", owner: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        return self.build if client is None else bound(self.build, client._stream)


def bound(build: Callable[..., Any], run: Callable[[Any], Any]) -> Callable[..., Any]:
    @functools.wraps(build)
    def call(*args: Any, **kwargs: Any) -> Any:
        return run(build(*args, **kwargs))

    return call


class Methods:
    """The methods of both clients."""

    _http: httpx2.Client | httpx2.AsyncClient

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._http.base_url)!r})"

    similarity = Method(_scoring.similarity)
    embed = Method(_scoring.embed)
    rerank = Method(_scoring.rerank)
    ready = Method(_scoring.ready)

    calibrate = Method(_calibrating.calibrate)
    add_labels = Method(_calibrating.add_labels)
    job = Method(_calibrating.job)
    jobs = Method(_calibrating.jobs)
    cancel = Method(_calibrating.cancel)
    events = StreamMethod(_following.events)
    wait = Method(_following.wait)

    match = StreamMethod(_following.match)
    start_match = Method(_matching.start_match)
    wait_match = Method(_following.wait_match)
    matches = Method(_matching.matches)
    match_state = Method(_matching.match_state)
    result = StreamMethod(_matching.result)
    pairs_to_judge = Method(_matching.pairs_to_judge)
    judge = Method(_matching.judge)
    delete_match = Method(_matching.delete_match)
    check_searches = Method(_matching.check_searches)

    domains = Method(_domains.domains)
    domain = Method(_domains.domain)
    version = Method(_domains.version)
    threshold = Method(_domains.threshold)
    thresholds = Method(_domains.thresholds)
    save_threshold = Method(_domains.save_threshold)
    delete_threshold = Method(_domains.delete_threshold)
    promote = Method(_domains.promote)
    rollback = Method(_domains.rollback)
    delete_domain = Method(_domains.delete_domain)
    delete_version = Method(_domains.delete_version)


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
