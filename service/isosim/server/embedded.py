"""The API in the process of a command: the app without a network, and a transport to it for the Python client.

The app runs on an event loop in a thread of its own. It has no keys, rates, time limits, worker, watchers, access log,
warm-up or second ONNX Runtime session: a command has one caller, and ends soon.
"""

import asyncio
import contextlib
import itertools
import logging
import math
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any, Self

import httpx2
from starlette.types import ASGIApp, Message, Scope
from threadpoolctl import threadpool_limits

from isosim.access.grants import SCOPES, Grant
from isosim.access.key_file import Keys
from isosim.access.limits import Limits
from isosim.api.access_log import Observer
from isosim.api.state import Listings, Phase, Service
from isosim.domains.champions import Champions
from isosim.domains.history import Author
from isosim.domains.registry import Registry, StoredCalibrations
from isosim.domains.store import DomainStore
from isosim.encoders.vector_cache import VectorCache
from isosim.jobs.job import Job
from isosim.jobs.matches import MatchStore
from isosim.jobs.store import JobStore
from isosim.migration.encoders import Encoders, LoadedEncoder
from isosim.observability.logs import Facts
from isosim.observability.metrics import Metrics
from isosim.scoring.drift import DriftMonitor
from isosim.server.app import create_app
from isosim.server.composition import store_calls
from isosim.server.encoders import plan, remote_options
from isosim.settings import Settings
from isosim.store.blobs import opened
from isosim.threads import Threads

log = logging.getLogger("isosim")

AHEAD = 4  # pieces of a body that are read before the app takes them, and pieces of an answer before they are read
RunJob = Callable[[Job], Awaitable[None]]
# What protects a server that many callers share. `allow_anonymous` accepts every Host header.
UNLIMITED = {
    "api_keys_file": None, "allow_anonymous": True, "cors_origins": (), "max_wait": math.inf,
    "request_timeout": math.inf, "max_pairs": 2**31, "max_body_bytes": 2**31, "max_calibration_bytes": 2**40,
    "max_calibration_sentences": 2**31, "max_queued_jobs": 2**31, "local_worker": True,
}  # fmt: skip


@asynccontextmanager
async def build(settings: Settings, run: RunJob) -> AsyncIterator[Service]:
    """The parts of an app for one caller. Raises as `plan` and `LoadedEncoder.load` do."""
    async with AsyncExitStack() as stack:
        stack.enter_context(threadpool_limits(1, "blas"))  # as a server's, so that scores are equal to the last bit
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        calls = stack.enter_context(store_calls())
        blobs = opened(settings.model_store)
        domains, own = DomainStore(blobs), settings.model_copy(update=UNLIMITED)
        # As a server plans its batches, because texts that share a batch may get other last bits.
        planned = plan(own, settings.encoder, exclusive=True)
        loaded = LoadedEncoder.load(
            planned.artifact,
            planned.engine,
            # 0: no second copy of the encoder, which would take a short command longer to load than it saves.
            replace(planned.execution, threads_alone=0),
            gpu_memory=settings.gpu_memory_bytes,
            late=True,
            remote=remote_options(settings),
            cache=VectorCache(settings.memory_cache_bytes),
        )
        if loaded.remote is not None:
            stack.callback(loaded.remote.close)
        stack.enter_context(loaded.embedder)
        calibrations = StoredCalibrations(domains)
        calibrations.calibrators[loaded.digest] = loaded.calibrator
        encoders = Encoders(Registry(calibrations, loaded.digest, calls=calls))
        encoders.add(loaded)
        yield Service(
            settings=own,
            metrics=Metrics(),
            keys=OneCaller(None),
            limits=await stack.enter_async_context(Limits()),
            encoders=encoders,
            domains=domains,
            champions=Champions(domains),
            jobs=JobStore(blobs),
            results=MatchStore(blobs, own.keep_results),
            drift=DriftMonitor(),
            redis=None,
            observer=Observer(tell_of_faults, "off"),
            listings=Listings(calls),
            hint=run,
            store=calls,
            scoring=stack.enter_context(contextlib.closing(Threads("scoring"))),
            loop=asyncio.get_running_loop(),
            phase=Phase.SERVING,
        )


class OneCaller(Keys):
    """The grant of the command, by which the history of domains names it."""

    def identify(self, authorization: str | None) -> Grant:
        return Grant(Author().by, frozenset(SCOPES))


def tell_of_faults(level: str, logger: str, message: str, facts: Facts) -> None:
    """Logs unexpected errors, whose answer says only that the log has them."""
    if "stack" in facts:
        log.error("%s: %s %s", message, facts["error"], facts["stack"])


class AppTransport(httpx2.BaseTransport):
    """Answers the requests of an `isosim_client.Client` by the app in this process. A context manager.

    Bodies and answers are streamed. A body is read in the caller's thread, so that Ctrl-C ends a read from a terminal.
    """

    def __init__(self, settings: Settings, run: RunJob) -> None:
        """`run` is called with each job that the caller creates."""
        self.settings, self._run = settings, run
        self._started: Future[Service] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="app", daemon=True)

    def __enter__(self) -> Self:
        """Starts the app. Raises IsosimError or OSError if it cannot start, for example without an encoder."""
        self._app = create_app(self.settings)
        self._thread.start()
        self._service = self._started.result()
        return self

    def __exit__(self, *_: object) -> None:
        self._service.loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._ended = asyncio.Event()
        try:
            async with build(self.settings, self._run) as service:
                self._started.set_result(service)
                await self._ended.wait()
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": request.url.scheme,
            "path": request.url.path,
            "query_string": request.url.query,
            "root_path": "",
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "client": None,
            "state": {"service": self._service},
        }
        exchange = Exchange(self._app, scope, self._service.loop)
        try:
            assert isinstance(request.stream, httpx2.SyncByteStream)  # noqa: S101 - the client is synchronous
            exchange.send_body(request.stream)
            head = next(exchange.messages())
        except BaseException:
            exchange.close()
            raise
        return httpx2.Response(head["status"], headers=head["headers"], stream=exchange)


class Exchange(httpx2.SyncByteStream):
    """One request and its answer, whose body this streams, between the caller's thread and the event loop."""

    def __init__(self, app: ASGIApp, scope: Scope, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._body: asyncio.Queue[bytes] = asyncio.Queue(AHEAD)
        self._answer: asyncio.Queue[Message | None] = asyncio.Queue(AHEAD)
        self._answered: Future[None] = Future()  # the answer has begun, or the app has failed
        self._task = asyncio.run_coroutine_threadsafe(self._call(app, scope), loop)

    async def _call(self, app: ASGIApp, scope: Scope) -> None:
        try:
            await app(scope, self._receive, self._send)
        finally:
            if not self._answered.done():
                self._answered.set_result(None)
        await self._answer.put(None)

    async def _receive(self) -> Message:
        """The next piece of the body. After its end, waits: `close` cancels the task of a caller that has left."""
        piece = await self._body.get()
        return {"type": "http.request", "body": piece, "more_body": piece != b""}

    async def _send(self, message: Message) -> None:
        if not self._answered.done():
            self._answered.set_result(None)
        await self._answer.put(message)

    def send_body(self, pieces: Iterable[bytes]) -> None:
        """Passes the body on at the pace at which the app takes it; stops when the app answers before the end."""
        for piece in itertools.chain(filter(None, pieces), [b""]):
            sent = asyncio.run_coroutine_threadsafe(self._body.put(piece), self._loop)
            wait([sent, self._answered], return_when=FIRST_COMPLETED)
            if self._answered.done():
                sent.cancel()
                return

    def messages(self) -> Iterator[Message]:
        """The app's messages. Raises what the app raises."""
        while True:
            message = asyncio.run_coroutine_threadsafe(self._answer.get(), self._loop)
            pending: list[Future[Any]] = [message, self._task]
            wait(pending, return_when=FIRST_COMPLETED)
            if self._task.done() and (error := self._task.exception()) is not None:
                message.cancel()
                raise error
            if (found := message.result()) is None:
                return
            yield found

    def __iter__(self) -> Iterator[bytes]:
        return (message["body"] for message in self.messages() if message.get("body"))

    def close(self) -> None:
        self._task.cancel()
