"""The parts that serve, without a server: the same embedder, calibrator and registry in this process."""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Self

from service.adapters.domains.calibrations import StoredCalibrations
from service.adapters.domains.store import DomainStore
from service.adapters.encoder.device import plan_execution, usable_cores
from service.adapters.encoder.onnx_engine import OnnxCalibrator, OnnxEncoder, choose_providers
from service.adapters.encoder.store import EncoderStore
from service.adapters.encoder.tokenizer import FastTokenizer
from service.commands.shared import known
from service.core.encoding.embedding import Embedder, Embeddings, MemoryCache
from service.core.encoding.texts import Text, VectorCodec
from service.core.scoring.calibration import Calibration
from service.core.scoring.registry import Registry
from service.settings import Settings

CHUNK = 256  # pairs, or texts, on their way at a time


class InProcess:
    """Answers as a server with the same settings would. A context manager.

    The event loop runs only while something is computed, so that Ctrl-C ends a read that waits for somebody to type.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        store = settings.model_store
        self.artifact = EncoderStore(store).find(settings.encoder)
        providers = choose_providers(settings.providers, self.artifact.calibrator)
        execution = plan_execution(
            providers,
            usable_cores(),
            runs=settings.runs,
            threads=settings.threads,
            max_batch_tokens=settings.max_batch_tokens,
            max_batch_texts=settings.max_batch_texts,
            max_queued_texts=2 * CHUNK,
            max_wait=float("inf"),
            exclusive=settings.alone,
        )
        # No second session for a lone batch: loading it takes longer than it would ever save here.
        encoder = OnnxEncoder(
            self.artifact.encoder,
            providers,
            execution.threads,
            self.artifact.spec.pad_token_id,
            memory=settings.gpu_memory_bytes,
        )
        calibrator = OnnxCalibrator(self.artifact.calibrator, providers)
        self.registry = Registry(
            StoredCalibrations(DomainStore(store), calibrator, self.artifact.digest), self.artifact.digest
        )
        self.embedder = Embedder(
            FastTokenizer(self.artifact.tokenizer, self.artifact.spec.max_length, self.artifact.every_prompt),
            encoder,
            encoder_digest=self.artifact.digest,
            codec=VectorCodec(settings.cache_precision, self.artifact.spec.dim),
            memory=MemoryCache(settings.memory_cache_bytes),
            shared=None,
            plan=execution.plan,
        )
        self._stack = ExitStack()
        self._stack.callback(self.registry.close)

    def __enter__(self) -> Self:
        self._runner = self._stack.enter_context(asyncio.Runner())
        self._runner.run(self._start())
        return self

    async def _start(self) -> None:
        self._stack.enter_context(self.embedder)  # it belongs to the loop that is running

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def calibration(self, domain: str) -> Calibration:
        """Raises NotFound, EncoderMismatch or CorruptArtifact."""
        return self._runner.run(self.registry.resolve(known(self.settings, domain)))

    def embed(self, contents: Sequence[str]) -> Embeddings:
        """Vectors of up to 2 × CHUNK texts."""
        texts = [Text(self.artifact.spec.prompt + content) for content in contents]
        return self._runner.run(self.embedder.embed(texts))
