"""The parts that belong to one encoder of a server, of which there may be two."""

import asyncio
import dataclasses
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from service.adapters.domains.calibrations import StoredCalibrations
from service.adapters.domains.store import DomainStore
from service.adapters.encoder import probe
from service.adapters.encoder.device import Execution, plan_execution, plan_remote, usable_cores
from service.adapters.encoder.onnx_engine import OnnxEncoder, choose_providers, on_gpu
from service.adapters.encoder.remote import RemoteEncoder
from service.adapters.encoder.store import EncoderArtifact, EncoderStore
from service.core.encoding.batching import BatchingPlan
from service.core.encoding.embedding import Embedder, MemoryCache
from service.core.encoding.spec import EncoderSpec
from service.core.encoding.texts import SharedCache, VectorCodec
from service.core.errors import IsosimError, Unavailable
from service.core.scoring.registry import Registry
from service.migration.encoders import Encoders, LoadedEncoder, tokenizer_of
from service.server import announcements
from service.settings import Settings

if TYPE_CHECKING:
    from service.observability.metrics import Metrics

log = logging.getLogger("isosim")

WITHIN = 0.75  # of a request's time may a remote encoder take, so that its failure can be told
HUNG = 3  # times the longest a run may take
LOOK_SECONDS = 2.0  # between looks at a remote encoder that has failed
GPU_WARM_LENGTHS = (16, 32, 64, 128, 256, 512)
WARM_LENGTHS = (4, 16, 64)  # tokens; a first run at a new size allocates


@dataclass(frozen=True)
class EncoderPlan:
    """An encoder and how it will be run; nothing is loaded yet."""

    artifact: EncoderArtifact
    providers: list[str]
    execution: Execution

    @property
    def held(self) -> int:
        """Bytes of weights in memory."""
        if self.artifact.kind != "onnx":
            return 0
        return self.artifact.encoder.stat().st_size * (2 if self.execution.threads_alone else 1)


def plan(settings: Settings, name: str, *, exclusive: bool, **queue: Any) -> EncoderPlan:
    """Looks the encoder up, and decides how it is run.

    Args:
        exclusive: a lone batch may run on all cores, for which the weights are in memory twice.
        queue: `max_queued_texts` and `max_wait`, where they are not those of the settings.

    Raises:
        Unavailable: the store has no such encoder, or what runs it is not installed.
    """
    artifact = EncoderStore(settings.model_store).find(name)
    providers = choose_providers(settings.providers, artifact.calibrator)
    given = {
        "runs": settings.runs,
        "max_batch_tokens": settings.max_batch_tokens,
        "max_batch_texts": settings.max_batch_texts,
        "max_queued_texts": settings.max_queued_texts,
        "max_wait": settings.max_wait,
    } | queue
    if artifact.kind != "onnx":
        return EncoderPlan(artifact, providers, plan_remote(hung_after=HUNG * settings.request_timeout, **given))
    execution = plan_execution(providers, usable_cores(), threads=settings.threads, exclusive=exclusive, **given)
    return EncoderPlan(artifact, providers, execution)


def remote_options(settings: Settings) -> dict[str, Any]:
    """Of a `RemoteEncoder` that answers requests."""
    return {"seconds": WITHIN * settings.request_timeout, "each": settings.probe == "request"}


async def plans(settings: Settings) -> tuple[EncoderPlan, EncoderPlan | None]:
    """The server's encoder, and the next one where the settings name one.

    Raises:
        Unavailable: as `plan`; or both are the same, or do not take the same.
    """
    first = await asyncio.to_thread(plan, settings, settings.encoder, exclusive=settings.alone)
    announcements.starting(settings, first.artifact, first.providers, first.execution)
    if settings.next_encoder is None:
        return first, None
    following = await asyncio.to_thread(plan, settings, settings.next_encoder, exclusive=False)
    if following.artifact.digest == first.artifact.digest:
        raise Unavailable("ISOSIM_NEXT_ENCODER names the encoder that serves already (ISOSIM_ENCODER); unset it")
    kinds = [one.artifact.kind == "vectors" for one in (first, following)]
    if kinds[0] != kinds[1]:
        raise Unavailable(
            f"ISOSIM_NEXT_ENCODER: no domain can move between {first.artifact.id} and {following.artifact.id}: "
            "one takes texts and the other vectors; serve them apart"
        )
    announcements.following(following.artifact, following.execution)
    return first, following


@dataclass
class EncoderParts:
    """Opens encoders that share caches, metrics and the model store; what they start ends with the stack."""

    settings: Settings
    metrics: "Metrics"
    domains: DomainStore
    encoders: Encoders
    memory: MemoryCache  # one for all: keys hold the encoder, and what is asked for stays
    shared: SharedCache | None
    resident_bytes: int  # of each encoder's calibrations

    async def open_both(
        self, first: EncoderPlan, following: EncoderPlan | None, stack: AsyncExitStack
    ) -> Embedder | None:
        """Opens one after the other, and a background embedder of the next one, where there is one."""
        await self.open(first, stack)
        if following is None:
            return None
        return self.open_background(await self.open(following, stack), following.execution.plan, stack)

    async def open(self, planned: EncoderPlan, stack: AsyncExitStack) -> LoadedEncoder:
        """Loads an encoder, lets it serve, warms it up and compares its known vector.

        Raises:
            CorruptArtifact: it computes other vectors than at its export.
        """
        artifact, metrics = planned.artifact, self.metrics

        def registry(calibrations: StoredCalibrations) -> Registry:
            return Registry(
                calibrations,
                artifact.digest,
                resident_bytes=self.resident_bytes,
                on_champion=self.encoders.loaded,
                on_dropped=lambda domain: self.encoders.dropped(domain, artifact.digest),
                on_gone=lambda domain: self.encoders.gone(domain, artifact.digest),
                on_failure=lambda _: metrics.load_failures.inc(),
            )

        loaded = await asyncio.to_thread(
            LoadedEncoder.load,
            artifact,
            planned.providers,
            planned.execution,
            registry,
            self.domains,
            gpu_memory=self.settings.gpu_memory_bytes,
            remote=remote_options(self.settings) | {"on_request": metrics.remote.observe},
            codec=VectorCodec(self.settings.cache_precision, artifact.spec.dim),
            memory=self.memory,
            # What no probe has stood beside may be another model's: it is not passed on to other servers.
            shared=None if artifact.remote is not None and self.settings.probe == "interval" else self.shared,
            on_batch=metrics.observe_batch,
            on_lookup=metrics.observe_lookup,
        )
        stack.callback(loaded.registry.close)
        stack.enter_context(loaded.embedder)
        self.encoders.add(loaded)
        await loaded.registry.refresh()  # `default` alone; the others when they are asked for
        graph = loaded.graph
        if isinstance(graph, RemoteEncoder):
            await self.open_remote(graph, stack)
        if not isinstance(graph, OnnxEncoder):
            return loaded
        await warm_up(graph, artifact.spec, GPU_WARM_LENGTHS if on_gpu(planned.providers) else WARM_LENGTHS)
        off = await asyncio.to_thread(probe.check, artifact, loaded.tokenizer, graph)
        if off is None:
            log.warning(
                "encoder %s was exported without a known vector; export it again to have one checked", artifact.id
            )
        return loaded

    async def open_remote(self, remote: RemoteEncoder, stack: AsyncExitStack) -> None:
        """Looks once, and from then on whenever it has failed: the server starts, and is not ready before an answer."""
        stack.callback(remote.close)
        self.metrics.remote.watch(remote.id, lambda: remote.state)
        await look_at(remote)
        stack.callback(asyncio.create_task(watch_remote(remote), name=f"watch-{remote.id}").cancel)

    def open_background(self, loaded: LoadedEncoder, plan: BatchingPlan, stack: AsyncExitStack) -> Embedder:
        """Another way to an encoder that is loaded: one run at a time, on threads of the lowest priority.

        It fills the cache of this process, so that a domain that moves finds the texts it is asked about most; Redis
        and the metrics see nothing of it.
        """
        spec = loaded.artifact.spec
        return stack.enter_context(
            Embedder(
                tokenizer_of(loaded.artifact),
                loaded.graph,
                encoder_digest=loaded.digest,
                codec=VectorCodec(self.settings.cache_precision, spec.dim),
                memory=self.memory,
                shared=None,
                plan=dataclasses.replace(plan, runs=1, ahead=0, exclusive=False, background=True),
            )
        )


async def watch_remote(remote: RemoteEncoder) -> None:
    """Finds out that a remote encoder is there again, without a request that would have to fail first."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        if remote.state != "ok":
            await look_at(remote)


async def look_at(remote: RemoteEncoder) -> None:
    """One probe; says what has changed."""
    before, known = remote.state, remote.failure is not None
    try:
        await asyncio.to_thread(remote.check)
    except IsosimError as error:
        remote.failure = remote.failure or error
    if remote.state == "ok":
        log.info("encoder %s answers as it was registered", remote.id)
    elif not known or (before, remote.state) in (("ok", "changed"), ("down", "changed"), ("changed", "down")):
        log.error("%s", remote.failure)


async def warm_up(graph: OnnxEncoder, spec: EncoderSpec, lengths: tuple[int, ...]) -> None:
    """Both ways of running, each with a batch of two texts of these lengths (tokens)."""
    for length in lengths:
        prepared = graph.prepare([[spec.pad_token_id] * min(length, spec.max_length)] * 2)
        for exclusive in (False, True):
            await asyncio.to_thread(graph.run, prepared, exclusive=exclusive)
