"""Loads a server's encoder."""

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isosim.domains.seeding import seed_default
from isosim.domains.store import DomainStore
from isosim.encoders import probe
from isosim.encoders.brought import NoEncoder
from isosim.encoders.device import Execution, plan_execution, plan_remote, usable_cores
from isosim.encoders.engines import LateEncoder, LocalEncoder, choose_engine
from isosim.encoders.loaded import LoadedEncoder
from isosim.encoders.remote import RemoteEncoder
from isosim.encoders.spec import EncoderSpec, Engine
from isosim.encoders.store import EncoderArtifact, EncoderStore
from isosim.encoders.vector_cache import VectorCache
from isosim.errors import IsosimError
from isosim.server import announcements
from isosim.settings import Settings
from isosim.store.blobs import opened
from isosim.store.identity import identify

if TYPE_CHECKING:
    from isosim.observability.metrics import Metrics

log = logging.getLogger("isosim")

WITHIN = 0.75  # share of `request_timeout` that a remote encoder may take, so that its failure can be reported in time
MOST_REMOTE = 600.0  # seconds that a run of a remote encoder may take in a command, whose requests have no time limit
HUNG = 3  # a remote encoder's run counts as hung after 3 times `request_timeout`
LOOK_SECONDS = 2.0  # seconds between probes of a remote encoder that has failed
# Text lengths (tokens) for `warm_up`, because the first run at a new length allocates memory.
GPU_WARM_LENGTHS = (16, 32, 64, 128, 256, 512)
WARM_LENGTHS = (4, 16, 64)


@dataclass(frozen=True)
class EncoderPlan:
    """An encoder that is not loaded yet, and how to run it."""

    artifact: EncoderArtifact
    engine: Engine
    execution: Execution

    @property
    def held(self) -> int:
        """Bytes that the weights take in memory."""
        if self.artifact.kind != "onnx":
            return 0
        return self.artifact.encoder.stat().st_size * (2 if self.execution.threads_alone else 1)


def plan(settings: Settings) -> EncoderPlan:
    """Finds the encoder in the store and decides how to run it.

    Raises:
        Unavailable: there is no model store, it has no such encoder, or the engine cannot run it.
    """
    store_id = identify(opened(settings.model_store))
    artifact = EncoderStore.at(settings.model_store, settings.seed_store).find(settings.encoder)
    given: dict[str, Any] = {name: getattr(settings, name) for name in ("runs", "max_batch_tokens", "max_wait")}
    engine: Engine = "onnxruntime"
    if artifact.kind != "onnx":
        execution = plan_remote(hung_after=HUNG * settings.request_timeout, **given)
    else:
        engine = choose_engine(settings.engine, artifact)
        execution = plan_execution(engine, usable_cores(), threads=settings.threads, **given)
    announcements.starting(settings, store_id, artifact, engine, execution)
    return EncoderPlan(artifact, engine, execution)


async def load(
    settings: Settings,
    planned: EncoderPlan,
    metrics: "Metrics",
    cache: VectorCache,
    stack: AsyncExitStack,
    *,
    late: bool,
) -> LoadedEncoder:
    """Loads an encoder and warms it up. Then checks that it still computes the vector that its export stored.

    Args:
        stack: closes the encoder.
        late: the graph opens for its first batch, without warm-up and check.

    Raises:
        CorruptArtifact: the encoder computes a different vector.
    """
    artifact = planned.artifact
    # A second copy of the weights would take a command longer to load than it saves.
    execution = replace(planned.execution, threads_alone=0) if late else planned.execution
    loaded = await asyncio.to_thread(
        LoadedEncoder.load,
        artifact,
        planned.engine,
        execution,
        late=late,
        gpu_memory=settings.gpu_memory_bytes,
        remote={
            "seconds": min(WITHIN * settings.request_timeout, MOST_REMOTE),
            "on_request": metrics.observe_remote,
        },
        cache=cache,
        on_batch=metrics.observe_batch,
    )
    stack.enter_context(loaded.embedder)
    graph = loaded.graph
    if isinstance(graph, RemoteEncoder):
        stack.callback(graph.close)
    if late:
        return loaded
    if isinstance(graph, RemoteEncoder):  # this server is not ready until the encoder answers
        await look_at(graph)
        stack.callback(asyncio.create_task(watch_remote(graph), name=f"watch-{graph.id}").cancel)
    if isinstance(graph, RemoteEncoder | NoEncoder | LateEncoder):
        return loaded
    await warm_up(graph, artifact.spec, GPU_WARM_LENGTHS if planned.engine == "cuda" else WARM_LENGTHS)
    off = await asyncio.to_thread(probe.check, artifact, loaded.tokenizer, graph)
    if off is None:
        log.warning(
            "encoder %s cannot be checked, because its export stored no vector to check against; export it again",
            artifact.id,
        )
    return loaded


def seed(domains: DomainStore, seed_store: Path, artifact: EncoderArtifact) -> None:
    """Publishes the encoder's default calibration of the second store, if `default` has no champion. The server also
    starts if that fails, for example on a read-only volume."""
    try:
        seed_default(domains, DomainStore(opened(seed_store)), artifact.digest)
    except (IsosimError, OSError) as error:
        log.warning("the default calibration of %s cannot be put into the store: %s", artifact.id, error)


async def watch_remote(remote: RemoteEncoder) -> None:
    """Probes a remote encoder while it fails, so that its recovery is noticed without a request."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        if remote.state != "ok":
            await look_at(remote)


async def look_at(remote: RemoteEncoder) -> None:
    """Probes a remote encoder once and logs a change of its state."""
    before, known = remote.state, remote.failure is not None
    try:
        await asyncio.to_thread(remote.check)
    except IsosimError as error:
        remote.failure = remote.failure or error
    if remote.state == "ok":
        log.info("encoder %s gives the same vectors as when it was registered", remote.id)
    elif not known or (before, remote.state) in (("ok", "changed"), ("down", "changed"), ("changed", "down")):
        log.error("%s", remote.failure)


async def warm_up(graph: LocalEncoder, spec: EncoderSpec, lengths: tuple[int, ...]) -> None:
    """Runs a batch of two texts of each length (tokens), so that the engine allocates memory before the first request.

    Each batch runs twice: once as usual, and once as a batch that runs alone.
    """
    for length in lengths:
        prepared = graph.prepare([[spec.pad_token_id] * min(length, spec.max_length)] * 2)
        for exclusive in (False, True):
            await asyncio.to_thread(graph.run, prepared, exclusive=exclusive)
