"""The API: its parts built and warmed up, and the ASGI application around them."""

import asyncio
import contextlib
import gc
import logging
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from typing import Any

from fastapi import FastAPI
from threadpoolctl import threadpool_limits

from service import __version__
from service.adapters import probe
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
from service.api.state import Phase, Service
from service.core.drift import DriftMonitor
from service.core.embedding import Embedder
from service.core.errors import Unavailable
from service.core.jobs import JobRunner
from service.core.memory_cache import MemoryCache
from service.core.registry import Registry
from service.core.texts import VectorCodec
from service.metrics import Metrics
from service.settings import Settings

log = logging.getLogger("isosim")

LOOPBACK = {"127.0.0.1", "localhost", "::1"}
COUNT_SECONDS = 10.0  # between counts of the jobs on record; each reads all of them
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
        # A request of two pairs makes products that BLAS wakes its threads for, and then they spin for 30 ms on the
        # cores that the encoder needs: requests of 4 pairs got half of the throughput.
        stack.enter_context(threadpool_limits(1, "blas"))
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
        off = await asyncio.to_thread(probe.check, artifact, tokenizer, encoder)
        if off is None:
            log.warning(
                "encoder %s was exported without a known vector; export it again to have one checked", artifact.id
            )
        watcher = asyncio.create_task(watch(service), name="store-watch")
        stack.push_async_callback(end, watcher)
        # What is there now stays: the collector need not look at it again and again, least of all in a request.
        gc.collect()
        gc.freeze()
        service.phase = Phase.SERVING
        yield service
        service.phase = Phase.STOPPING


@contextlib.contextmanager
def only_process(settings: Settings) -> Any:
    """Without Redis nothing tells two API processes apart from each other's jobs: the second one is refused."""
    with ExitStack() as stack:
        lock = stack.enter_context(try_lock(settings.model_store / "jobs" / ".lock"))
        if not lock:
            raise Unavailable(f"another API process uses {settings.model_store}; several need Redis (ISOSIM_REDIS_URL)")
        yield


async def watch(service: Service) -> None:
    """Sees new champions, and counts jobs for the metrics."""
    counted = -COUNT_SECONDS
    while True:
        try:
            await service.registry.refresh()
            if time.monotonic() - counted > COUNT_SECONDS:
                service.metrics.observe_jobs(await asyncio.to_thread(service.jobs.counts))
                counted = time.monotonic()
        except Exception:  # the loop's boundary: the volume is away, a file is odd; what is loaded keeps serving
            log.exception("the model store could not be read")
        await asyncio.sleep(service.settings.poll_seconds)


async def end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


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
