"""The API process: builds its parts, warms up, serves, drains."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from typing import Any

from fastapi import FastAPI

from service import __version__
from service.adapters.artifacts import try_lock
from service.adapters.calibration_source import StoredCalibrations
from service.adapters.domain_store import DomainStore
from service.adapters.encoder_store import EncoderStore
from service.adapters.job_store import JobStore
from service.adapters.local_jobs import LocalJobs
from service.adapters.onnx_engine import OnnxCalibrator, OnnxEncoder, choose_providers
from service.adapters.redis_cache import RedisCache
from service.adapters.rq_jobs import RqJobs
from service.adapters.tokenizer import FastTokenizer
from service.api import calibrate, domains, embed, errors, operations, similarity
from service.api.auth import Keys
from service.api.middleware import Envelope
from service.api.state import Service
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
        # One after the other: loaded side by side the two peaks of memory add up.
        encoder = await asyncio.to_thread(
            OnnxEncoder, artifact.encoder, providers, settings.threads, artifact.spec.pad_token_id
        )
        calibrator = await asyncio.to_thread(OnnxCalibrator, artifact.calibrator, providers)
        jobs, domain_store = JobStore(store), DomainStore(store)
        runner: JobRunner
        shared: RedisCache | None = None
        if settings.redis_url is None:
            stack.enter_context(only_process(settings))
            runner = await stack.enter_async_context(
                LocalJobs(jobs, store, settings.worker_threads, settings.job_timeout)
            )
        else:
            url = settings.redis_url.get_secret_value()
            shared = await stack.enter_async_context(
                RedisCache(url, ttl=settings.redis_ttl, timeout=settings.redis_timeout, on_event=metrics.observe_redis)
            )
            runner = RqJobs(url, settings.job_timeout)
        registry = Registry(
            StoredCalibrations(domain_store, calibrator, artifact.digest),
            artifact.digest,
            on_champion=metrics.observe_champion,
            on_failure=lambda _: metrics.load_failures.inc(),
        )
        await registry.refresh(everything=True)
        embedder = stack.enter_context(
            Embedder(
                FastTokenizer(artifact.tokenizer, artifact.spec.max_length),
                encoder,
                encoder_digest=artifact.digest,
                codec=VectorCodec(settings.cache_precision, artifact.spec.dim),
                memory=MemoryCache(settings.memory_cache_bytes),
                shared=shared,
                max_batch_tokens=settings.max_batch_tokens,
                max_batch_texts=settings.max_batch_texts,
                max_queued_texts=settings.max_queued_texts,
                on_batch=metrics.observe_batch,
                on_lookup=metrics.observe_lookup,
            )
        )
        service = Service(
            settings=settings,
            metrics=metrics,
            keys=Keys(settings.api_keys_file),
            encoder=artifact,
            embedder=embedder,
            registry=registry,
            domains=domain_store,
            jobs=jobs,
            runner=runner,
        )
        metrics.encoder.info({"id": artifact.id, "digest": artifact.digest, "precision": artifact.spec.precision})
        for length in WARM_LENGTHS:
            await asyncio.to_thread(encoder, [[artifact.spec.pad_token_id] * length] * 2)
        watcher = asyncio.create_task(watch(registry, settings.poll_seconds), name="champion-watch")
        stack.push_async_callback(end, watcher)
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


async def watch(registry: Registry, seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            await registry.refresh()
        except OSError:  # the store's volume is away: what is loaded keeps serving
            log.exception("the model store could not be read")


async def end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def create_app(settings: Settings) -> FastAPI:
    """The ASGI application; its parts start with its lifespan."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Service]]:
        async with build(settings) as service:
            yield {"service": service}

    app = FastAPI(
        title="isosim",
        version=__version__,
        summary="Calibrated sentence similarity: one threshold that means the same in every domain.",
        lifespan=lifespan,
        redoc_url=None,
    )
    errors.install(app)
    for module in (similarity, embed, calibrate, domains, operations):
        app.include_router(module.router)
    app.add_middleware(Envelope)
    return app
