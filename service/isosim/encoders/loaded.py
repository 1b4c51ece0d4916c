"""An encoder in memory, with all that a server needs to answer with it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from isosim.encoders.brought import NoEncoder
from isosim.encoders.device import Execution
from isosim.encoders.embedding import Embedder
from isosim.encoders.engines import LateEncoder, LocalEncoder, open_encoder
from isosim.encoders.onnx_engine import OnnxCalibrator
from isosim.encoders.remote import RemoteEncoder, RemoteTokenizer
from isosim.encoders.spec import Engine
from isosim.encoders.store import EncoderArtifact
from isosim.encoders.tokenizer import FastTokenizer


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

    def set_cpu_contended(self, cpu_contended: bool) -> None:
        """Tells the batcher whether other work, such as a calibration job, uses the processor."""
        self.embedder.batcher.cpu_contended = cpu_contended

    @property
    def fault(self) -> str | None:
        """Why this isosim server is not ready: a remote encoder has not answered yet, or now runs another model.

        None if this server is ready. It stays ready if a remote encoder has answered before and cannot be reached now:
        this server still scores cached texts, and the other isosim servers depend on the same remote encoder.
        """
        remote = self.remote
        if remote is None or (remote.met and remote.state != "changed"):
            return None
        return str(remote.failure or f"the server of encoder {self.artifact.id} has not answered yet")


def tokenizer_of(artifact: EncoderArtifact) -> FastTokenizer | RemoteTokenizer | NoEncoder:
    """The encoder's tokenizer, or a substitute if the encoder is remote or callers send vectors."""
    if artifact.kind == "vectors":
        return NoEncoder(artifact.id, artifact.spec.dim)
    if artifact.remote is not None:
        return RemoteTokenizer(artifact.id, artifact.spec.max_length)
    return FastTokenizer(artifact.tokenizer, artifact.spec.max_length, artifact.every_prompt)
