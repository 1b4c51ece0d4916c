"""Loads a server's encoder."""

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isosim.domains.seeding import seed_default
from isosim.domains.store import DomainStore
from isosim.encoders import probe
from isosim.encoders.batching import BatchEncoder, BatchingPlan
from isosim.encoders.brought import NoEncoder
from isosim.encoders.device import plan_execution, plan_remote, usable_cores
from isosim.encoders.embedding import Embedder
from isosim.encoders.engines import LateEncoder, choose_engine, open_encoder
from isosim.encoders.loaded import LoadedEncoder
from isosim.encoders.onnx_engine import OnnxCalibrator
from isosim.encoders.remote import RemoteEncoder, RemoteTokenizer
from isosim.encoders.spec import EncoderSpec, Engine
from isosim.encoders.store import EncoderArtifact, EncoderStore
from isosim.encoders.tokenizer import FastTokenizer
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
    batching: BatchingPlan

    @property
    def held(self) -> int:
        """Bytes that the weights take in memory."""
        if self.artifact.kind != "onnx":
            return 0
        return self.artifact.encoder.stat().st_size * (2 if self.batching.threads_alone else 1)

    @property
    def facts(self) -> dict[str, object]:
        """For the log."""
        artifact = self.artifact
        computed = self.engine if artifact.kind == "onnx" else artifact.kind
        facts = {"encoder": artifact.id, "encoder_digest": artifact.digest, "engine": computed}
        return facts | {"precision": artifact.spec.precision} | asdict(self.batching)


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
        batching = plan_remote(hung_after=HUNG * settings.request_timeout, **given)
    else:
        engine = choose_engine(settings.engine, artifact)
        batching = plan_execution(engine, usable_cores(), threads=settings.threads, **given)
    planned = EncoderPlan(artifact, engine, batching)
    announcements.starting("starting", settings, store_id, **planned.facts)
    return planned


async def load(
    settings: Settings,
    planned: EncoderPlan,
    metrics: "Metrics",
    cache: VectorCache,
    stack: AsyncExitStack,
    *,
    late: bool,
) -> LoadedEncoder:
    """Loads an encoder.

    Args:
        stack: closes the encoder.
        late: see `opened_encoder`.

    Raises:
        Unavailable, CorruptArtifact: see `opened_encoder`.
    """
    loaded = await asyncio.to_thread(opened_encoder, planned, settings, metrics, cache, late=late)
    stack.enter_context(loaded.embedder)
    graph = loaded.graph
    if isinstance(graph, RemoteEncoder):
        stack.callback(graph.close)
        if not late:  # this server is not ready until the encoder answers
            await look_at(graph)
            stack.callback(asyncio.create_task(watch_remote(graph), name=f"watch-{graph.id}").cancel)
    return loaded


def opened_encoder(
    planned: EncoderPlan, settings: Settings, metrics: "Metrics", cache: VectorCache, *, late: bool
) -> LoadedEncoder:
    """Opens an encoder's files, which takes seconds, or makes what takes their place if the encoder is remote or
    callers send vectors. Warms a graph up, and checks that it still computes the vector that its export stored.

    Raises:
        Unavailable, CorruptArtifact: a file cannot be opened, or the encoder computes a different vector.
    """
    artifact, spec = planned.artifact, planned.artifact.spec
    plan = planned.batching
    tokenizer: FastTokenizer | RemoteTokenizer | NoEncoder
    graph: BatchEncoder
    if artifact.kind == "vectors":
        tokenizer = graph = NoEncoder(artifact.id, spec.dim)
    elif artifact.kind == "remote":
        tokenizer = RemoteTokenizer(artifact.id, spec.max_length)
        seconds = min(WITHIN * settings.request_timeout, MOST_REMOTE)
        graph = RemoteEncoder(artifact, seconds=seconds, requests=plan.runs, on_request=metrics.observe_remote)
    else:
        tokenizer = FastTokenizer(artifact.tokenizer, spec.max_length, artifact.every_prompt)
        memory = settings.gpu_memory_bytes
        # A second copy of the weights would take a command longer to load than it saves. The batches are a server's, so
        # that the scores are.
        copies = replace(plan, threads_alone=0) if late else plan
        opens = partial(open_encoder, artifact.encoder, spec, planned.engine, copies, memory=memory)
        if late:
            graph = LateEncoder(opens)
        else:
            graph = local = opens()
            warm_up(local, spec, GPU_WARM_LENGTHS if planned.engine == "cuda" else WARM_LENGTHS)
            if probe.check(artifact, tokenizer, local) is None:
                log.warning("encoder %s cannot be checked: its export stored no vector; export it again", artifact.id)
    # The encoder is loaded before the calibrator, not in parallel: the memory peaks of both would add up. The
    # calibrator always runs on the CPU. It takes 0.2 ms for a pair there, and 0.9 ms on a GPU. 32 pairs take 1.1 ms on
    # both (loadtest/README.md). Only for hundreds of pairs is a GPU faster.
    calibrator = OnnxCalibrator(artifact.calibrator)
    digest, observe = artifact.digest, metrics.observe_batch
    embedder = Embedder(tokenizer, graph, encoder_digest=digest, cache=cache, plan=plan, on_batch=observe)
    return LoadedEncoder(artifact, tokenizer, graph, embedder, calibrator)


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


def warm_up(graph: BatchEncoder, spec: EncoderSpec, lengths: tuple[int, ...]) -> None:
    """Runs a batch of two texts of each length (tokens), so that the engine allocates memory before the first request.

    Each batch runs twice: once as usual, and once as a batch that runs alone.
    """
    for length in lengths:
        prepared = graph.prepare([[spec.pad_token_id] * min(length, spec.max_length)] * 2)
        for exclusive in (False, True):
            graph.run(prepared, exclusive=exclusive)
