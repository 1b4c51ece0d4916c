"""Chooses the engine that computes an exported encoder's vectors, and opens the encoder on it."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isosim.arrays import Vectors
from isosim.encoders.batching import BatchEncoder, BatchingPlan
from isosim.encoders.onnx_engine import OnnxEncoder, cuda_loads
from isosim.encoders.spec import EncoderSpec, Engine
from isosim.encoders.store import EncoderArtifact
from isosim.errors import Unavailable

if TYPE_CHECKING:  # an extra
    from isosim.encoders.openvino_engine import OpenVinoEncoder


def choose_engine(wanted: Engine | None, artifact: EncoderArtifact) -> Engine:
    """The engine for an encoder: `wanted`; or OpenVINO for bf16; or CUDA if it is installed and loads; or ONNX Runtime.

    Raises:
        Unavailable: `wanted` would compute other vectors than those of the encoder's digest.
    """
    number_format, own = artifact.spec.number_format, artifact.spec.cpu_engine
    on_openvino = own == "openvino"
    chosen = wanted or ("cuda" if not on_openvino and cuda_loads(artifact.calibrator) else own)
    if number_format != "fp32" and on_openvino != (chosen == "openvino"):
        by = "OpenVINO" if on_openvino else "ONNX Runtime"
        raise Unavailable(
            f"encoder {artifact.id} is defined by what {by} computes at {number_format}, so {chosen} cannot run it; "
            "choose another engine or device, or use the encoder at fp32, which every engine runs"
        )
    return chosen


def engine_on(artifact: EncoderArtifact, *, gpu: bool) -> Engine:
    """The engine for an encoder on a GPU, or on the processor. Raises Unavailable as `choose_engine` does."""
    return choose_engine("cuda" if gpu else artifact.spec.cpu_engine, artifact)


def open_encoder(
    path: Path, spec: EncoderSpec, engine: Engine, plan: BatchingPlan, *, memory: int = 0
) -> "OnnxEncoder | OpenVinoEncoder":
    """Opens an encoder's graph, which takes seconds.

    Args:
        plan: how many runs compute at the same time, with how many threads each; 0 means one per physical core.
        memory: maximum bytes of GPU memory; 0: no limit.

    Raises:
        Unavailable: the engine is not installed or does not load, or the processor lacks the encoder's number format.
    """
    alone = plan.threads_alone
    if engine == "openvino":
        from isosim.encoders.openvino_engine import OpenVinoEncoder  # noqa: PLC0415 - an extra

        bf16 = spec.number_format == "bf16"
        return OpenVinoEncoder(path, plan.threads, spec.pad_token_id, bf16=bf16, runs=plan.runs, threads_alone=alone)
    gpu = engine == "cuda"
    return OnnxEncoder(path, plan.threads, spec.pad_token_id, gpu=gpu, threads_alone=alone, memory=memory)


class LateEncoder:
    """An encoder that is opened for its first batch, for programs that often compute none. Thread-safe.

    `open_late` opens it; what it raises, `prepare` raises.
    """

    def __init__(self, open_late: Callable[[], BatchEncoder]) -> None:
        self._open, self._lock = open_late, threading.Lock()
        self._opened: BatchEncoder | None = None

    def prepare(self, ids: Sequence[Sequence[int]]) -> Any:
        with self._lock:
            self._opened = self._opened or self._open()
        return self._opened.prepare(ids)

    def run(self, prepared: Any, *, exclusive: bool = False) -> Vectors:
        assert self._opened is not None  # noqa: S101 - `prepare` has opened it
        return self._opened.run(prepared, exclusive=exclusive)
