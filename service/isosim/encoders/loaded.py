"""An encoder in memory, with all that a server needs to answer with it."""

from dataclasses import dataclass

from isosim.encoders.batching import BatchEncoder
from isosim.encoders.brought import NoEncoder
from isosim.encoders.embedding import Embedder
from isosim.encoders.onnx_engine import OnnxCalibrator
from isosim.encoders.remote import RemoteEncoder, RemoteTokenizer
from isosim.encoders.store import EncoderArtifact
from isosim.encoders.tokenizer import FastTokenizer


@dataclass(frozen=True)
class LoadedEncoder:
    """An encoder in memory, with its tokenizer and embedder, and what runs its calibrations."""

    artifact: EncoderArtifact
    tokenizer: FastTokenizer | RemoteTokenizer | NoEncoder
    graph: BatchEncoder
    embedder: Embedder
    calibrator: OnnxCalibrator

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
