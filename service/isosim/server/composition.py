"""Builds the parts of a server, and stops them in reverse order."""

import asyncio
import contextlib
import gc
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from threadpoolctl import threadpool_limits
from uvicorn.server import ServerState

from isosim.access.grants import SCOPES, Grant
from isosim.access.key_file import Keys
from isosim.access.limits import Limits
from isosim.api.operations import exposition
from isosim.api.readings import registry_of
from isosim.api.state import Listings, Phase, Service
from isosim.api.trace import Observer
from isosim.domains.champions import Champions
from isosim.domains.history import Author
from isosim.domains.registry import Registry, StoredCalibrations
from isosim.domains.store import DomainStore
from isosim.encoders.cache import RedisCache, beat
from isosim.encoders.device import memory_limit, plan_resident
from isosim.encoders.vector_cache import VectorCache
from isosim.errors import Unavailable
from isosim.jobs.hints import announce
from isosim.jobs.job import Job
from isosim.jobs.matches import MatchStore
from isosim.jobs.store import JobStore
from isosim.observability import logs
from isosim.observability.logs import Facts
from isosim.observability.metrics import Metrics
from isosim.observability.traces import tracing
from isosim.redis_connection import end, refuse_wrong_role
from isosim.scoring.drift import DriftMonitor
from isosim.server.encoders import EncoderPlan, load, plan, seed
from isosim.server.guard import KEEP_ALIVE, Guard
from isosim.server.local_worker import LocalWorker, can_calibrate
from isosim.server.store_watch import watch
from isosim.settings import Settings, check_exposure
from isosim.store.blobs import opened
from isosim.threads import CALLS, StoreCalls, Threads

log = logging.getLogger("isosim")

# Thresholds of Python's garbage collector. With the default (700), collections took 6 % of the time of a
# cached request.
GARBAGE = 20_000, 10, 10
SCRAPERS = 32  # connections to the port of the metrics; Prometheus keeps one
LAST_SPANS = 0.5  # seconds for sending the last spans


RunJob = Callable[[Job], Awaitable[None]]


@asynccontextmanager
async def build(settings: Settings, run: RunJob | None = None) -> AsyncIterator[Service]:
    """Starts a server's parts and yields them; stops them in reverse order.

    With `run`, they are those of a command, which has one caller and ends soon: without worker, watchers, access log,
    warm-up and second session of the encoder. `run` is called with each job that the caller creates.
    """
    check_exposure(settings)
    async with AsyncExitStack() as stack:
        # BLAS gets one thread. More threads would spin for 30 ms after each use, on cores that the encoder needs. This
        # halved the throughput of requests of 4 pairs.
        stack.enter_context(threadpool_limits(1, "blas"))
        # Each batch is tokenized by one thread, in 30 µs of processor time per text; several threads took 40 to 70 µs.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        calls = stack.enter_context(store_calls())
        metrics = Metrics()
        planned = await asyncio.to_thread(plan, settings)
        artifact = planned.artifact
        blobs = opened(settings.model_store)
        domain_store, jobs = DomainStore(blobs), JobStore(blobs)
        url = settings.redis_address
        shared: RedisCache | None = None
        if url is not None:
            await asyncio.to_thread(refuse_wrong_role, url)
            shared = await stack.enter_async_context(
                RedisCache(url, ttl=settings.redis_ttl, timeout=settings.redis_timeout, on_event=metrics.observe_redis)
            )
        keys = Keys(settings.api_keys_file) if run is None else OneCaller(None)
        if settings.api_keys_file is not None:
            stack.push_async_callback(end, asyncio.create_task(keys.watch(), name="api-keys"))
        limits = Limits(None if settings.api_keys_file is None else url, timeout=settings.redis_timeout)
        await stack.enter_async_context(limits)
        drift = DriftMonitor()
        if settings.seed_store is not None and run is None:
            await asyncio.to_thread(seed, domain_store, settings.seed_store, artifact)
        vectors = VectorCache(settings.memory_cache_bytes, shared)
        encoder = await load(settings, planned, metrics, vectors, stack, late=run is not None)
        source = StoredCalibrations(domain_store, encoder.digest, encoder.calibrator)
        registry = Registry(source, resident_bytes=room_for_calibrations(settings, planned), calls=calls)
        if run is None:
            await registry.refresh()  # loads `default` only; other domains load at their first request
        if shared is not None:  # only now: opening an encoder delays answers beyond what a lookup may take
            stack.push_async_callback(end, asyncio.create_task(beat(shared), name="redis-pulse"))
        worker = None
        if settings.local_worker and run is None:
            waiting = bool(await asyncio.to_thread(jobs.index))
            worker = LocalWorker(settings, encoder.set_cpu_contended, jobs=waiting)
            await stack.enter_async_context(worker)
        service = Service(
            settings=settings,
            metrics=metrics,
            keys=keys,
            limits=limits,
            encoder=encoder,
            registry=registry,
            domains=domain_store,
            champions=Champions(domain_store),
            jobs=jobs,
            results=MatchStore(blobs, settings.keep_results),
            drift=drift,
            redis=shared,
            observer=observe(settings, stack) if run is None else Observer(tell_of_faults, "off"),
            listings=Listings(calls),
            hint=run or partial(tell_workers, worker, shared),
            store=calls,
            scoring=stack.enter_context(contextlib.closing(Threads("scoring"))),
            large_json=stack.enter_context(contextlib.closing(Threads("json", 1))),
            loop=asyncio.get_running_loop(),
        )
        await stack.enter_async_context(scraped(service))
        metrics.encoder.info({"id": artifact.id, "digest": artifact.digest, "precision": artifact.spec.precision})
        if run is None:
            watcher = asyncio.create_task(watch(service), name="store-watch")
            stack.push_async_callback(end, watcher)
            freeze()
        service.phase = Phase.SERVING
        yield service
        service.phase = Phase.STOPPING


class OneCaller(Keys):
    """The grant of the command, by which the history of domains names it."""

    def identify(self, authorization: str | None) -> Grant:
        return Grant(Author().by, frozenset(SCOPES))


def tell_of_faults(level: str, logger: str, message: str, facts: Facts) -> None:
    """Logs unexpected errors, whose answer says only that the log has them."""
    if "stack" in facts:
        log.error("%s: %s %s", message, facts["error"], facts["stack"])


async def tell_workers(worker: LocalWorker | None, shared: RedisCache | None, _: Job) -> None:
    """There is a new job. Workers look for jobs by themselves too, only later."""
    if worker is not None:
        worker.wake()
    if shared is not None:
        await announce(shared.redis)


def freeze() -> None:
    """All objects of the start-up live as long as the server: the garbage collector does not scan them again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE)


@contextlib.contextmanager
def store_calls() -> Iterator[StoreCalls]:
    """Threads for calls of the store, and enough for background tasks and uploads if some of these hang."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(CALLS, "background"))
    with contextlib.closing(StoreCalls()) as calls:
        yield calls


def room_for_calibrations(settings: Settings, planned: EncoderPlan) -> int:
    """Bytes of memory that the loaded calibrations together may take."""
    return settings.resident_bytes or plan_resident(
        memory_limit(),
        settings.memory_cache_bytes + planned.held,
        gpu=planned.engine == "cuda",
        jobs=settings.local_worker and can_calibrate(),
    )


@asynccontextmanager
async def scraped(service: Service) -> AsyncIterator[None]:
    """Adds the readings to the metrics, and serves these on a port of their own if the settings name one. Its callers
    need no key, so its connections have the same limits as the others.

    Raises:
        Unavailable: the port cannot be bound.
    """
    registry_of(service.metrics, service)
    settings = service.settings
    if settings.metrics_port is None:
        yield
        return

    async def metrics(scope: Scope, receive: Receive, send: Send) -> None:
        await (await exposition(service))(scope, receive, send)

    listen = partial(asyncio.get_running_loop().create_server, host=settings.host, port=settings.metrics_port)
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(listening(metrics, Guard(max_connections=SCRAPERS), listen, {}))
        except OSError as error:
            message = f"ISOSIM_METRICS_PORT={settings.metrics_port} cannot be bound: {error.strerror}"
            raise Unavailable(message) from error
        yield


@asynccontextmanager
async def listening(
    app: ASGIApp,
    protocol: Callable[..., asyncio.Protocol],
    listen: Callable[..., Awaitable[asyncio.Server]],
    state: dict[str, Any],
) -> AsyncIterator[None]:
    """Serves an app by uvicorn's `protocol` on what `listen` opens, without signals and lifespan."""
    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, lifespan="off", ws="none",
        timeout_keep_alive=KEEP_ALIVE,
    )  # fmt: skip
    shared = ServerState()
    server = await listen(partial(protocol, config=config, server_state=shared, app_state=state))
    try:
        yield
    finally:
        server.close()
        for connection in list(shared.connections):
            connection.shutdown()
        for request in list(shared.tasks):
            request.cancel()
        if shared.tasks:  # a request that is writing a job ends when the job is known to `hint`
            await asyncio.wait(shared.tasks)


def observe(settings: Settings, stack: AsyncExitStack) -> Observer:
    """The access log and traces as configured. The remaining spans are sent when `stack` closes."""
    lines, traces = logs.line_queue(), tracing("isosim")
    which = settings.access_log if logging.getLogger("isosim").isEnabledFor(logging.INFO) else "off"
    if traces is not None:
        stack.push_async_callback(asyncio.to_thread, traces.close, LAST_SPANS)
    return Observer(None if lines is None else lines.line, which, traces)
