"""Builds the parts of a server, and stops them in reverse order."""

import asyncio
import contextlib
import gc
import logging
import os
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import uvicorn
from starlette.types import Receive, Scope, Send
from threadpoolctl import threadpool_limits
from uvicorn.server import ServerState

from isosim.access.key_file import Keys
from isosim.access.limits import Limits
from isosim.api.access_log import Observer
from isosim.api.operations import exposition
from isosim.api.readings import registry_of
from isosim.api.state import Listings, Phase, Service
from isosim.domains.champions import Champions
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
from isosim.migration.encoders import Encoders
from isosim.observability import logs
from isosim.observability.metrics import Metrics
from isosim.observability.traces import tracing
from isosim.redis_connection import end, refuse_wrong_role
from isosim.scoring.drift import DriftMonitor
from isosim.server.encoders import EncoderParts, EncoderPlan, plans
from isosim.server.guard import Guard
from isosim.server.local_worker import LocalWorker, can_calibrate
from isosim.server.store_watch import watch
from isosim.settings import Settings, check_exposure
from isosim.store.blobs import opened
from isosim.threads import CALLS, StoreCalls, Threads

if TYPE_CHECKING:
    from isosim.observability.otlp import Tracing

log = logging.getLogger("isosim")

# Thresholds of Python's garbage collector. With the default (700), collections took 6 % of the time of a
# cached request.
GARBAGE = 20_000, 10, 10
SCRAPERS = 32  # connections to the port of the metrics; Prometheus keeps one
LAST_SPANS = 0.5  # minimum seconds for sending the last spans, also after `drain_seconds`


@asynccontextmanager
async def build(settings: Settings) -> AsyncIterator[Service]:
    """Starts a server's parts and yields them; stops them in reverse order."""
    check_exposure(settings)
    async with AsyncExitStack() as stack:
        # BLAS gets one thread. More threads would spin for 30 ms after each use, on cores that the encoder needs. This
        # halved the throughput of requests of 4 pairs.
        stack.enter_context(threadpool_limits(1, "blas"))
        # Each batch is tokenized by one thread, in 30 µs of processor time per text; several threads took 40 to 70 µs.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        calls = stack.enter_context(store_calls())
        metrics = Metrics()
        first, following = await plans(settings)
        blobs = opened(settings.model_store)
        domain_store, jobs = DomainStore(blobs), JobStore(blobs)
        url = settings.redis_address
        shared: RedisCache | None = None
        if url is not None:
            await asyncio.to_thread(refuse_wrong_role, url)
            shared = await stack.enter_async_context(
                RedisCache(url, ttl=settings.redis_ttl, timeout=settings.redis_timeout, on_event=metrics.observe_redis)
            )
            stack.push_async_callback(end, asyncio.create_task(beat(shared), name="redis-pulse"))
        keys = Keys(settings.api_keys_file)
        stack.push_async_callback(end, asyncio.create_task(keys.watch(), name="api-keys"))
        limits = Limits(None if settings.api_keys_file is None else url, timeout=settings.redis_timeout)
        await stack.enter_async_context(limits)
        drift = DriftMonitor()
        calibrations = StoredCalibrations(domain_store)
        resident = room_for_calibrations(settings, first, following)
        registry = Registry(
            calibrations,
            first.artifact.digest,
            resident_bytes=resident,
            calls=calls,
        )
        encoders, vectors = Encoders(registry), VectorCache(settings.memory_cache_bytes, shared)
        parts = EncoderParts(settings, metrics, calibrations, encoders, vectors)
        for planned in filter(None, (first, following)):
            await parts.open(planned, stack)
        worker = None
        if settings.local_worker:
            waiting = bool(await asyncio.to_thread(jobs.index))
            worker = LocalWorker(settings, encoders.set_cpu_contended, jobs=waiting)
            await stack.enter_async_context(worker)
        service = Service(
            settings=settings,
            metrics=metrics,
            keys=keys,
            limits=limits,
            encoders=encoders,
            domains=domain_store,
            champions=Champions(domain_store),
            jobs=jobs,
            results=MatchStore(blobs, settings.keep_results),
            drift=drift,
            redis=shared,
            observer=observe(settings, stack),
            listings=Listings(calls),
            hint=partial(tell_workers, worker, shared),
            store=calls,
            scoring=stack.enter_context(contextlib.closing(Threads("scoring"))),
            loop=asyncio.get_running_loop(),
        )
        await stack.enter_async_context(scraped(service))
        artifact = first.artifact
        metrics.encoder.info({"id": artifact.id, "digest": artifact.digest, "precision": artifact.spec.precision})
        watcher = asyncio.create_task(watch(service), name="store-watch")
        stack.push_async_callback(end, watcher)
        freeze()
        service.phase = Phase.SERVING
        yield service
        service.phase = Phase.STOPPING


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


def room_for_calibrations(settings: Settings, first: EncoderPlan, following: EncoderPlan | None) -> int:
    """Bytes of memory that the loaded calibrations of both encoders together may take."""
    weights = sum(planned.held for planned in (first, following) if planned is not None)
    return settings.resident_bytes or plan_resident(
        memory_limit(),
        settings.memory_cache_bytes + weights,
        gpu=first.engine == "cuda",
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

    config = uvicorn.Config(metrics, log_config=None, access_log=False, server_header=False, lifespan="off", ws="none")
    state, guard = ServerState(), Guard(max_connections=SCRAPERS)
    protocol = partial(guard, config=config, server_state=state, app_state={})
    try:
        server = await asyncio.get_running_loop().create_server(protocol, settings.host, settings.metrics_port)
    except OSError as error:
        raise Unavailable(f"ISOSIM_METRICS_PORT={settings.metrics_port} cannot be bound: {error.strerror}") from error
    try:
        yield
    finally:
        server.close()
        for connection in list(state.connections):
            connection.shutdown()


def observe(settings: Settings, stack: AsyncExitStack) -> Observer:
    """The access log and traces as configured. The remaining spans are sent when `stack` closes."""
    lines, traces = logs.line_queue(), tracing("isosim")
    which = settings.access_log if logging.getLogger("isosim").isEnabledFor(logging.INFO) else "off"
    observer = Observer(None if lines is None else lines.line, which, traces)
    if traces is not None:
        stack.push_async_callback(send_last, traces, observer)
    return observer


async def send_last(traces: "Tracing", observer: Observer) -> None:
    """Sends the remaining spans. The time limit is the rest of the drain time, but at least LAST_SPANS seconds."""
    left = 0.0 if observer.drained_by is None else observer.drained_by - time.perf_counter()
    await asyncio.to_thread(traces.close, max(LAST_SPANS, left))
