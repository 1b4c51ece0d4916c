"""Holds a server's own encoder and its next encoder, and chooses the encoder for each request."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from isosim.domains.domain import Domain
from isosim.domains.registry import Registry, moved_away
from isosim.encoders.brought import NoEncoder
from isosim.encoders.device import Execution
from isosim.encoders.embedding import Embedder
from isosim.encoders.engines import LateEncoder, LocalEncoder, open_encoder
from isosim.encoders.onnx_engine import OnnxCalibrator
from isosim.encoders.remote import RemoteEncoder, RemoteTokenizer
from isosim.encoders.spec import Engine
from isosim.encoders.store import EncoderArtifact
from isosim.encoders.tokenizer import FastTokenizer
from isosim.errors import Conflict

log = logging.getLogger("isosim")


@dataclass(frozen=True)
class LoadedEncoder:
    """An encoder in memory, with its tokenizer and embedder, and what runs its calibrations."""

    artifact: EncoderArtifact
    tokenizer: FastTokenizer | RemoteTokenizer | NoEncoder
    graph: LocalEncoder | LateEncoder | RemoteEncoder | NoEncoder
    embedder: Embedder
    calibrator: OnnxCalibrator

    @classmethod
    def load(
        cls,
        artifact: EncoderArtifact,
        engine: Engine,
        execution: Execution,
        *,
        gpu_memory: int = 0,
        late: bool = False,
        remote: Mapping[str, Any],
        **embedding: Any,
    ) -> Self:
        """Opens the graphs, which takes seconds. The caller must enter `embedder` as a context.

        Args:
            gpu_memory: bytes that ONNX Runtime may take on a GPU; 0: no limit.
            late: opens the encoder's graph for the first batch, not now.
            remote: arguments for `RemoteEncoder`, used if the encoder is remote.
            embedding: further arguments for `Embedder`.

        Raises:
            Unavailable, CorruptArtifact: a graph cannot be opened.
        """
        spec = artifact.spec
        tokenizer = tokenizer_of(artifact)
        # The encoder is loaded before the calibrator, not in parallel: the memory peaks of both would add up.
        graph: LocalEncoder | LateEncoder | RemoteEncoder | NoEncoder
        if artifact.kind == "vectors":
            graph = NoEncoder(artifact.id, spec.dim)
        elif artifact.remote is not None:
            graph = RemoteEncoder(artifact, requests=execution.plan.runs, **remote)
        else:
            opens = partial(
                open_encoder,
                artifact.encoder,
                spec,
                engine,
                execution.threads,
                runs=execution.plan.runs,
                threads_alone=execution.threads_alone,
                memory=gpu_memory,
            )
            graph = LateEncoder(opens) if late else opens()
        # The calibrator always runs on the CPU. It takes 0.2 ms for a pair there, and 0.9 ms on a GPU. 32 pairs take
        # 1.1 ms on both (loadtest/README.md). Only for hundreds of pairs is a GPU faster.
        calibrator = OnnxCalibrator(artifact.calibrator)
        embedder = Embedder(tokenizer, graph, encoder_digest=artifact.digest, plan=execution.plan, **embedding)
        return cls(artifact, tokenizer, graph, embedder, calibrator)

    @property
    def digest(self) -> str:
        return self.artifact.digest

    @property
    def remote(self) -> RemoteEncoder | None:
        return self.graph if isinstance(self.graph, RemoteEncoder) else None


def tokenizer_of(artifact: EncoderArtifact) -> FastTokenizer | RemoteTokenizer | NoEncoder:
    """The encoder's tokenizer, or a substitute if the encoder is remote or callers send vectors."""
    if artifact.kind == "vectors":
        return NoEncoder(artifact.id, artifact.spec.dim)
    if artifact.remote is not None:
        return RemoteTokenizer(artifact.id, artifact.spec.max_length)
    return FastTokenizer(artifact.tokenizer, artifact.spec.max_length, artifact.every_prompt)


class Encoders:
    """The server's own encoder, its next encoder if there is one, and the domains in memory."""

    def __init__(self, registry: Registry) -> None:
        """Starts without encoders; see `add`."""
        self.registry = registry
        self._loaded: dict[str, LoadedEncoder] = {}  # by digest; the server's own encoder is the first

    def add(self, loaded_encoder: LoadedEncoder) -> None:
        """Adds an encoder. The first call must add the server's own encoder; a second call adds the next encoder."""
        self._loaded[loaded_encoder.digest] = loaded_encoder
        self.registry.add(loaded_encoder.digest)

    @property
    def all(self) -> list[LoadedEncoder]:
        return list(self._loaded.values())

    @property
    def first(self) -> LoadedEncoder:
        return self.all[0]

    @property
    def next(self) -> LoadedEncoder | None:
        return self.all[1] if len(self.all) > 1 else None

    @property
    def alive(self) -> bool:
        """Whether the batchers of all encoders still run; if not, the server must be restarted."""
        return all(loaded_encoder.embedder.batcher.alive for loaded_encoder in self.all)

    @property
    def fault(self) -> str | None:
        """Why this isosim server is not ready: a remote encoder has not answered yet, or now runs another model.

        None if this server is ready. It stays ready if a remote encoder has answered before and cannot be reached now:
        this server still scores cached texts, and the other isosim servers depend on the same remote encoder.
        """
        for one in self.all:
            remote = one.remote
            if remote is not None and self._answers(one) and (remote.state == "changed" or not remote.met):
                return str(remote.failure or f"the server of encoder {one.artifact.id} has not answered yet")
        return None

    def _answers(self, encoder: LoadedEncoder) -> bool:
        """Whether requests need this encoder: it is the server's own, or a domain in memory has moved to it."""
        return encoder is self.first or encoder.digest in self.registry.homes

    @property
    def queued(self) -> int:
        """Number of texts that were admitted and are not finished."""
        return sum(loaded_encoder.embedder.batcher.queued for loaded_encoder in self.all)

    @property
    def expected_wait(self) -> float:
        """Estimated seconds until all texts that wait now are encoded, by the slower encoder."""
        return max(loaded_encoder.embedder.batcher.expected_wait for loaded_encoder in self.all)

    def set_cpu_contended(self, cpu_contended: bool) -> None:
        """Tells all batchers whether other work, such as a calibration job, uses the processor."""
        for loaded_encoder in self.all:
            loaded_encoder.embedder.batcher.cpu_contended = cpu_contended

    def find(self, digest: str) -> LoadedEncoder | None:
        return self._loaded.get(digest)

    def require_next(self) -> LoadedEncoder:
        """The next encoder. Raises Conflict if the server has none."""
        if self.next is None:
            raise Conflict("this server has no next encoder; set ISOSIM_NEXT_ENCODER to one in the store and restart")
        return self.next

    def home(self, domain: Domain) -> LoadedEncoder:
        """The encoder to which a domain belongs: the server's own, or the one to which the domain has moved.

        If this server does not run the latter, it is the server's own, and `active` refuses requests.
        """
        return self.find(domain.home(self.first.digest)) or self.first

    def active(self, name: str, domain: Domain) -> LoadedEncoder:
        """The encoder for a domain's requests. Raises EncoderMismatch if this server does not run it."""
        home = self.find(domain.home(self.first.digest))
        if home is None:
            raise moved_away(name, domain)
        return home

    def pair(self, domain: Domain) -> tuple[LoadedEncoder, LoadedEncoder]:
        """The old and the new encoder of a domain's move; of a domain that has not moved, the own and the next encoder.

        Raises:
            Conflict: this server does not run both encoders.
        """
        if domain.move is None:
            return self.first, self.require_next()
        old, new = self.find(domain.move.old), self.find(domain.move.new)
        if old is None or new is None:
            lacking = domain.move.old_id if old is None else domain.move.new_id
            raise Conflict(f"this server does not run encoder {lacking}; name it in ISOSIM_NEXT_ENCODER and restart")
        return old, new

    async def follow(self, domain: str) -> None:
        """Applies a change that was just stored.

        A failure is only logged, because the next check of the store (`store_watch.py`) applies the change.
        """
        try:
            await self.registry.refresh(domain)
        except Exception:  # answering the request with an error would suggest that nothing was changed
            log.exception("a change was made, but the model store could not be read after it")
