"""The parts of a server: built, warmed up, checked, and stopped in the opposite order."""

import asyncio
import contextlib
import gc
import logging
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from threadpoolctl import threadpool_limits

from service import announcements
from service.adapters import probe
from service.adapters.artifacts import try_lock
from service.adapters.calibration_source import StoredCalibrations
from service.adapters.device import plan_execution, usable_cores
from service.adapters.domain_store import DomainStore
from service.adapters.encoder_store import EncoderArtifact, EncoderStore
from service.adapters.job_census import JobCensus
from service.adapters.job_store import JobStore
from service.adapters.local_jobs import LocalJobs
from service.adapters.onnx_engine import OnnxCalibrator, OnnxEncoder, choose_providers, on_gpu
from service.adapters.redis_cache import RedisCache
from service.adapters.redis_limits import RedisLimits
from service.adapters.redis_pulse import beat
from service.adapters.rq_jobs import RqJobs
from service.adapters.tasks import end
from service.adapters.tokenizer import FastTokenizer
from service.api.auth import Keys
from service.api.observation import Observer
from service.api.request_log import AccessLog
from service.api.state import Phase, Service
from service.core.drift import DriftMonitor
from service.core.embedding import Embedder
from service.core.errors import Unavailable
from service.core.jobs import JobRunner
from service.core.memory_cache import MemoryCache
from service.core.rate_limit import Limits, LocalLimits
from service.core.registry import Registry
from service.core.texts import VectorCodec
from service.logs import setup as logs
from service.metrics import Metrics
from service.settings import Settings
from service.store_watch import watch
from service.tracing import tracing

if TYPE_CHECKING:
    from service.otlp import Tracing  # only where tracing is on

log = logging.getLogger("isosim")

LOOPBACK = {"127.0.0.1", "localhost", "::1"}
LAST_SPANS = 0.5  # s to send them where requests have taken all the time there was
LEASE_MARGIN = 10.0  # s a request counts as under way beyond the time it may take
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
        store, jobs = settings.model_store, JobStore(settings.jobs_root)
        artifact = await asyncio.to_thread(EncoderStore(store).find, settings.encoder)
        providers = await asyncio.to_thread(choose_providers, settings.providers, artifact.calibrator)
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
        announcements.starting(settings, artifact, providers, execution)
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
        domain_store = DomainStore(store)
        census = JobCensus(jobs)
        await asyncio.to_thread(domain_store.prepare)
        await asyncio.to_thread(jobs.sweep)
        await asyncio.to_thread(census.take)  # what has ended by now is no news
        url = settings.redis_address
        shared: RedisCache | None = None
        if url is None:
            stack.enter_context(only_process(settings))
        else:
            shared = await stack.enter_async_context(
                RedisCache(url, ttl=settings.redis_ttl, timeout=settings.redis_timeout, on_event=metrics.observe_redis)
            )
            metrics.redis_up.read = lambda: shared.up
            stack.push_async_callback(end, asyncio.create_task(beat(shared), name="redis-pulse"))
        limits = await stack.enter_async_context(shared_limits(settings, url, metrics))
        registry = Registry(
            StoredCalibrations(domain_store, calibrator, artifact.digest),
            artifact.digest,
            resident_bytes=settings.resident_bytes,
            on_champion=metrics.observe_champion,
            on_dropped=metrics.forget_champion,
            on_failure=lambda _: metrics.load_failures.inc(),
        )
        stack.callback(registry.close)
        metrics.resident.read = lambda: registry.size
        await registry.refresh()  # `default` alone; the others when they are asked for
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
            keys=stack.enter_context(Keys(settings.api_keys_file).watched()),
            limits=limits,
            encoder=artifact,
            tokenizer=tokenizer,
            embedder=embedder,
            registry=registry,
            domains=domain_store,
            jobs=jobs,
            runner=runner,
            drift=DriftMonitor(),
            observer=observe(settings, metrics, stack),
        )
        metrics.encoder.info({"id": artifact.id, "digest": artifact.digest, "precision": artifact.spec.precision})
        await warm_up(encoder, artifact, GPU_WARM_LENGTHS if on_gpu(providers) else WARM_LENGTHS)
        off = await asyncio.to_thread(probe.check, artifact, tokenizer, encoder)
        if off is None:
            log.warning(
                "encoder %s was exported without a known vector; export it again to have one checked", artifact.id
            )
        watcher = asyncio.create_task(watch(service, census), name="store-watch")
        stack.push_async_callback(end, watcher)
        # What is there now stays: the collector need not look at it again and again, least of all in a request.
        gc.collect()
        gc.freeze()
        service.phase = Phase.SERVING
        yield service
        service.phase = Phase.STOPPING


async def warm_up(encoder: OnnxEncoder, artifact: EncoderArtifact, lengths: tuple[int, ...]) -> None:
    """Both ways of running, each with a batch of two texts of these lengths (tokens)."""
    spec = artifact.spec
    for length in lengths:
        some = encoder.prepare([[spec.pad_token_id] * min(length, spec.max_length)] * 2)
        for alone in (False, True):
            await asyncio.to_thread(encoder.run, some, alone=alone)


@asynccontextmanager
async def shared_limits(settings: Settings, url: str | None, metrics: Metrics) -> AsyncIterator[Limits]:
    """The keys' limits, of all processes where there is a Redis."""
    if url is None or settings.api_keys_file is None:
        yield LocalLimits(on_refused=metrics.observe_limit)
        return
    lease = settings.request_timeout + LEASE_MARGIN
    async with RedisLimits(
        url,
        timeout=settings.redis_timeout,
        lease=lease,
        on_refused=metrics.observe_limit,
        on_fallback=metrics.limits_fallback.inc,
    ) as limits:
        yield limits


@contextlib.contextmanager
def only_process(settings: Settings) -> Any:
    """Without Redis nothing tells two API processes apart from each other's jobs: the second one is refused."""
    with ExitStack() as stack:
        lock = stack.enter_context(try_lock(settings.jobs_root / "jobs" / ".lock"))
        if not lock:
            raise Unavailable(f"another API process uses {settings.jobs_root}; several need Redis (ISOSIM_REDIS_URL)")
        yield


def observe(settings: Settings, metrics: Metrics, stack: AsyncExitStack) -> Observer:
    """The access log and the traces that the settings ask for; what was traced is sent before the stack has ended."""
    access, output = None, logs.output()
    if output is not None:
        metrics.log_dropped.read = lambda: output.sink.dropped
        if settings.access_log != "off" and logging.getLogger("isosim").isEnabledFor(logging.INFO):
            access = AccessLog(output.line, settings.access_log, settings.slow_seconds)
    traces = tracing(settings, "isosim")
    observer = Observer(access, traces)
    if traces is not None:
        stack.push_async_callback(send_last, traces, observer)
    return observer


async def send_last(traces: "Tracing", observer: Observer) -> None:
    """The spans not sent yet, in what is left of the time to drain."""
    left = 0.0 if observer.drained_by is None else observer.drained_by - time.perf_counter()
    await asyncio.to_thread(traces.close, max(LAST_SPANS, left))
