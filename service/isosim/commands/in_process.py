"""Scoring without a server: runs a server's embedder, calibrator and registry in this process."""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Self

from isosim.commands.shared import domain_store, known
from isosim.domains.calibrations import StoredCalibrations
from isosim.domains.registry import Registry
from isosim.encoders.embedding import Embeddings
from isosim.encoders.texts import Text
from isosim.encoders.vector_cache import VectorCache
from isosim.migration.encoders import LoadedEncoder
from isosim.scoring.advice import DecisionThreshold, decision_threshold
from isosim.scoring.calibration import Calibration
from isosim.server.encoders import plan, remote_options
from isosim.settings import Settings

CHUNK = 256  # number of pairs or texts computed at a time


class InProcess:
    """Computes the same results as a server with the same settings. A context manager.

    The event loop runs only during computations. While it runs, Ctrl-C cannot interrupt a read from standard input.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        # As a server plans its batches, because texts that share a batch may get other last bits.
        planned = plan(settings, settings.encoder, exclusive=True, max_queued_texts=2 * CHUNK, max_wait=float("inf"))
        self.artifact = planned.artifact
        self.loaded = LoadedEncoder.load(
            self.artifact,
            planned.providers,
            # 0: no second ONNX session, which runs a single batch with more threads. A short command would lose more
            # time by loading this session than it would gain.
            replace(planned.execution, threads_alone=0),
            gpu_memory=settings.gpu_memory_bytes,
            remote=remote_options(settings),
            cache=VectorCache(settings.memory_cache_bytes),
        )
        calibrations = StoredCalibrations(domain_store(settings))
        calibrations.calibrators[self.artifact.digest] = self.loaded.calibrator
        self.registry = Registry(calibrations, self.artifact.digest)
        self._stack = ExitStack()
        self._stack.callback(self.registry.close)

    def __enter__(self) -> Self:
        self._runner = self._stack.enter_context(asyncio.Runner())
        self._runner.run(self._start())
        return self

    async def _start(self) -> None:
        self._stack.enter_context(self.loaded.embedder)  # the embedder can be entered only while the event loop runs

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def calibration(self, domain: str) -> Calibration:
        """The calibration of name, name@3 or name@previous. Raises NotFound, EncoderMismatch or CorruptArtifact."""
        return self._runner.run(self.registry.resolve(known(self.settings, domain)))

    def decision(self, calibration: Calibration, name: str) -> DecisionThreshold:
        """The threshold for the target saved under `name`. Raises NotFound if the domain has no such target."""
        target = self._runner.run(self.registry.target(calibration.domain, name))
        return decision_threshold(calibration, target)

    def embed(self, contents: Sequence[str]) -> Embeddings:
        """Vectors of up to 2 × CHUNK texts."""
        texts = [Text(self.artifact.spec.prompt + content) for content in contents]
        return self._runner.run(self.loaded.embedder.embed(texts))
