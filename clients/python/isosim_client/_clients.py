"""The two clients, which have the methods of `_scoring`, `_calibrating`, `_matching` and `_domains`. `Client` runs the
requests of a method to their end, `AsyncClient` returns what is awaited."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar

import httpx2

from . import _calibrating, _domains, _matching, _scoring
from ._call import Answered, Sender, Streamed
from ._http import TIMEOUT, Blocking, Suspending, each, finished, settings
from ._retries import Retries

T = TypeVar("T")
PATIENT = Retries()


class Methods:
    """The methods of both clients."""

    _http: httpx2.Client | httpx2.AsyncClient

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._http.base_url)!r})"

    similarity = _scoring.similarity
    embed = _scoring.embed
    rerank = _scoring.rerank
    ready = _scoring.ready

    calibrate = _calibrating.calibrate
    add_labels = _calibrating.add_labels
    job = _calibrating.job
    jobs = _calibrating.jobs
    cancel = _calibrating.cancel
    wait = _calibrating.wait

    match = _matching.match
    start_match = _matching.start_match
    wait_match = _matching.wait_match
    matches = _matching.matches
    match_state = _matching.match_state
    result = _matching.result
    pairs_to_judge = _matching.pairs_to_judge
    judge = _matching.judge
    delete_match = _matching.delete_match
    check_searches = _matching.check_searches

    domains = _domains.domains
    domain = _domains.domain
    version = _domains.version
    threshold = _domains.threshold
    thresholds = _domains.thresholds
    save_threshold = _domains.save_threshold
    delete_threshold = _domains.delete_threshold
    promote = _domains.promote
    rollback = _domains.rollback
    delete_domain = _domains.delete_domain
    delete_version = _domains.delete_version


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
    failure may be temporary, the method first retries the request. Methods name in their documentation only what they
    raise beside the usual: NotFound for an unknown domain, version, threshold or job; EmptyInput, InvalidInput and
    TooLarge for arguments that the server refuses; Conflict for a domain that has changed since `seen`, or a version of
    another encoder; Overloaded after all retries.
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

    Await each method, but iterate over `match` and `result` with `async for`. `Client` describes the arguments.

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
