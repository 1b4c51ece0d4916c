"""The API process: builds its parts, warms up, serves, drains."""

import asyncio
import contextlib
import gc
import logging
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from service import __version__
from service.adapters.artifacts import try_lock
from service.adapters.calibration_source import StoredCalibrations
from service.adapters.device import plan_execution, usable_cores
from service.adapters.domain_store import DomainStore
from service.adapters.encoder_store import EncoderStore
from service.adapters.job_store import JobStore
from service.adapters.local_jobs import LocalJobs
from service.adapters.onnx_engine import OnnxCalibrator, OnnxEncoder, choose_providers, on_gpu
from service.adapters.redis_cache import RedisCache
from service.adapters.rq_jobs import RqJobs
from service.adapters.tokenizer import FastTokenizer
from service.api import (
    calibrate,
    console,
    docs_page,
    documentation,
    domains,
    embed,
    errors,
    inference_protocol,
    openai,
    operations,
    rerank,
    similarity,
    tei,
)
from service.api.auth import Keys
from service.api.middleware import Envelope
from service.api.state import Service
from service.core.drift import DriftMonitor
from service.core.embedding import Embedder
from service.core.errors import Unavailable
from service.core.jobs import JobRunner, Status
from service.core.memory_cache import MemoryCache
from service.core.registry import Registry
from service.core.texts import VectorCodec
from service.metrics import Metrics
from service.settings import Settings

log = logging.getLogger("isosim")

LOOPBACK = {"127.0.0.1", "localhost", "::1"}
COUNT_SECONDS = 10.0  # between counts of the jobs on record; each reads all of them
SWITCH_SECONDS = 0.0005  # until a busy event loop hands over: a device that waits for it computes nothing meanwhile
GPU_WARM_LENGTHS = (16, 32, 64, 128, 256, 512)
WARM_LENGTHS = (4, 16, 64)  # tokens; a first run at a new size allocates


def check_exposure(settings: Settings) -> None:
    """Raises Unavailable where anybody on the network could use a server without keys."""
    if settings.host not in LOOPBACK and settings.api_keys_file is None and not settings.allow_anonymous:
        raise Unavailable(
            f"host {settings.host} needs API keys (ISOSIM_API_KEYS_FILE) or ISOSIM_ALLOW_ANONYMOUS=true; "
            "without either only 127.0.0.1 is served"
        )


@asynccontextmanager
async def build(settings: Settings) -> AsyncIterator[Service]:
    """All parts of a server, started, and stopped in the opposite order."""
    check_exposure(settings)
    async with AsyncExitStack() as stack:
        metrics = Metrics()
        store = settings.model_store
        artifact = await asyncio.to_thread(EncoderStore(store).find, settings.encoder)
        providers = choose_providers(settings.providers)
        execution = plan_execution(
            providers,
            usable_cores(),
            runs=settings.runs,
            threads=settings.threads,
            max_batch_tokens=settings.max_batch_tokens,
            max_batch_texts=settings.max_batch_texts,
            max_queued_texts=settings.max_queued_texts,
            max_wait=settings.max_wait,
            alone=settings.alone,
        )
        # One after the other: loaded side by side the two peaks of memory add up.
        encoder = await asyncio.to_thread(
            OnnxEncoder,
            artifact.encoder,
            providers,
            execution.threads,
            artifact.spec.pad_token_id,
            threads_alone=execution.threads_alone,
            memory=settings.gpu_memory_bytes,
        )
        calibrator = await asyncio.to_thread(OnnxCalibrator, artifact.calibrator, providers)
        jobs, domain_store = JobStore(store), DomainStore(store)
        domain_store.prepare()
        await asyncio.to_thread(jobs.sweep)
        url = None if settings.redis_url is None else settings.redis_url.get_secret_value()
        shared: RedisCache | None = None
        if url is None:
            stack.enter_context(only_process(settings))
        else:
            shared = await stack.enter_async_context(
                RedisCache(url, ttl=settings.redis_ttl, timeout=settings.redis_timeout, on_event=metrics.observe_redis)
            )
        registry = Registry(
            StoredCalibrations(domain_store, calibrator, artifact.digest),
            artifact.digest,
            on_champion=metrics.observe_champion,
            on_failure=lambda _: metrics.load_failures.inc(),
        )
        await registry.refresh(everything=True)
        tokenizer = FastTokenizer(artifact.tokenizer, artifact.spec.max_length)
        embedder = stack.enter_context(
            Embedder(
                tokenizer,
                encoder,
                encoder_digest=artifact.digest,
                codec=VectorCodec(settings.cache_precision, artifact.spec.dim),
                memory=MemoryCache(settings.memory_cache_bytes),
                shared=shared,
                plan=execution.plan,
                on_batch=metrics.observe_batch,
                on_lookup=metrics.observe_lookup,
            )
        )
        runner: JobRunner
        if url is None:
            runner = await stack.enter_async_context(
                LocalJobs(
                    jobs, store, settings.worker_threads, settings.job_timeout, on_busy=embedder.batcher.set_crowded
                )
            )
        else:
            runner = RqJobs(url, settings.job_timeout)
        service = Service(
            settings=settings,
            metrics=metrics,
            keys=Keys(settings.api_keys_file),
            encoder=artifact,
            tokenizer=tokenizer,
            embedder=embedder,
            registry=registry,
            domains=domain_store,
            jobs=jobs,
            runner=runner,
            drift=DriftMonitor(),
        )
        metrics.encoder.info({"id": artifact.id, "digest": artifact.digest, "precision": artifact.spec.precision})
        lengths = GPU_WARM_LENGTHS if on_gpu(providers) else WARM_LENGTHS
        for length in lengths:
            some = encoder.prepare([[artifact.spec.pad_token_id] * min(length, artifact.spec.max_length)] * 2)
            for alone in (False, True):
                await asyncio.to_thread(encoder.run, some, alone=alone)
        watcher = asyncio.create_task(watch(service), name="store-watch")
        stack.push_async_callback(end, watcher)
        # What is there now stays: the collector need not look at it again and again, least of all in a request.
        gc.collect()
        gc.freeze()
        service.ready = True
        yield service
        service.ready = False


@contextlib.contextmanager
def only_process(settings: Settings) -> Any:
    """Without Redis nothing tells two API processes apart from each other's jobs: the second one is refused."""
    with ExitStack() as stack:
        lock = stack.enter_context(try_lock(settings.model_store / "jobs" / ".lock"))
        if not lock:
            raise Unavailable(f"another API process uses {settings.model_store}; several need Redis (ISOSIM_REDIS_URL)")
        yield


async def watch(service: Service) -> None:
    """Sees new champions, counts jobs for the metrics, and hands queued ones over again that Redis has lost."""
    counted = -COUNT_SECONDS
    while True:
        try:
            await service.registry.refresh()
            if time.monotonic() - counted > COUNT_SECONDS:
                jobs = await asyncio.to_thread(service.jobs.all)
                service.metrics.observe_jobs(Counter(job.status for job in jobs))
                await service.runner.recover([job for job in jobs if job.status is Status.QUEUED])
                counted = time.monotonic()
        except Exception:  # the loop's boundary: the volume is away, a file is odd; what is loaded keeps serving
            log.exception("the model store could not be read")
        await asyncio.sleep(service.settings.poll_seconds)


async def end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


class Server(uvicorn.Server):
    """Says so when it is ready, and stops taking requests the moment it is told to end."""

    def __init__(self, settings: Settings) -> None:
        self.app = create_app(settings)
        config = uvicorn.Config(
            self.app,
            host=settings.host,
            port=settings.port,
            log_level=settings.log_level,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=int(settings.drain_seconds),
        )
        super().__init__(config)
        sys.setswitchinterval(SWITCH_SECONDS)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            address = f"http://{self.config.host}:{self.config.port}"
            body = '{"pairs": [["A man is playing a guitar.", "Someone plays an instrument."]]}'
            print(f"ready on {address}; try:\n")
            print(f"curl -s {address}/similarity -H 'content-type: application/json' -d '{body}'\n", flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        service: Service | None = getattr(self.app.state, "service", None)
        if service is not None:
            service.ready = False
        super().handle_exit(sig, frame)


def create_app(settings: Settings) -> FastAPI:
    """The ASGI application; its parts start with its lifespan."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Service]]:
        async with build(settings) as service:
            app.state.service = service
            yield {"service": service}

    app = FastAPI(
        title="isosim",
        version=__version__,
        summary="Calibrated sentence similarity: one threshold that means the same in every domain.",
        lifespan=lifespan,
        docs_url=None,  # api/docs_page.py serves it without the internet
        redoc_url=None,
    )
    errors.install(app)
    documentation.install(app)
    scoring = (similarity.router, embed.router, rerank.router, openai.scoring, tei.tokens)
    rest = (calibrate.router, domains.router, openai.router, inference_protocol.router, tei.router, operations.router)
    for router in (*scoring, *rest, console.router, docs_page.router):
        app.include_router(router)
    app.add_middleware(Envelope)
    return app
