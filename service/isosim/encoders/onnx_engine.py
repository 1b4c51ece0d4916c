"""The encoder and calibrator graphs on ONNX Runtime."""

import contextlib
import functools
import logging
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from isosim.arrays import Vectors, Weights
from isosim.encoders.texts import rounded_up
from isosim.errors import BackendFailure, CorruptArtifact, Unavailable

log = logging.getLogger("isosim")

PREFIX = "calibrator."  # the graph's inputs for the calibrator's weights have names with this prefix

# Fusions that are switched off on the CPU: without them, the encoder is 8 % faster (loadtest/README.md). For 128 × 384
# numbers, the fused kernel takes 296 µs. The addition and the normalization take 60 µs without fusion (ONNX Runtime
# 1.31, AVX2).
SLOWER_FUSED = ["SkipLayerNormFusion"]

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
LOAD_ERRORS = (RuntimeError, ValueError)  # raised if a provider does not load; a broken graph raises other errors
# Raised by a session's `run`; onnxruntime's exceptions have no common base class below Exception.
RUN_ERRORS = (
    ort.capi.onnxruntime_pybind11_state.Fail,
    ort.capi.onnxruntime_pybind11_state.InvalidArgument,
    ort.capi.onnxruntime_pybind11_state.RuntimeException,
    ort.capi.onnxruntime_pybind11_state.EPFail,
)


def cuda_loads(trial: Path) -> bool:
    """Whether CUDA is installed and can load the graph `trial` on this machine. Logs the reason if it cannot."""
    if CUDA not in ort.get_available_providers():
        return False
    try:
        open_session(trial, threads=1, gpu=True)
    except Unavailable as error:
        log.warning("vectors are computed on the CPU, because %s", error)
        return False
    return True


def open_session(
    graph: Path | bytes, threads: int, *, gpu: bool = False, spin: bool = False, memory: int = 0
) -> ort.InferenceSession:
    """Opens a graph with `threads` threads per run; 0 means one per physical core. `memory`: see `gpu_options`.

    With `spin`, waiting threads do not sleep during a run.

    Raises:
        Unavailable: `gpu`, and CUDA does not load. ONNX Runtime would use the processor without an error.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Under load, threads that spin occupy cores that the event loop needs. For a run that has the machine to itself,
    # spinning saves the time to wake threads: 4 % of a single request's p50. That it ends with the run saves 6 %,
    # because the event loop has its core back (loadtest/README.md).
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spin else "0")
    options.add_session_config_entry("session.force_spinning_stop", "1")
    # Memory patterns would make ONNX Runtime keep a plan for each shape of input, and most batches differ in shape.
    options.enable_mem_pattern = False
    if not gpu:
        return ort.InferenceSession(graph, options, providers=[CPU], disabled_optimizers=SLOWER_FUSED)
    load_cuda()
    try:
        session = ort.InferenceSession(
            graph, options, providers=[CUDA, CPU], provider_options=[gpu_options(memory), {}], enable_fallback=0
        )
    except LOAD_ERRORS as error:
        raise Unavailable(f"{CUDA} does not load: {' '.join(str(error).split())[:300]}") from error
    if CUDA not in session.get_providers():
        raise Unavailable(f"{CUDA} does not load: is there a device, its driver, and CUDA's libraries?")
    return session


@functools.cache
def load_cuda() -> None:
    """Loads CUDA's libraries: from the packages of the extra [gpu] if they are installed, otherwise from the system."""
    with contextlib.redirect_stdout(sys.stderr):  # `preload_dlls` prints missing libraries; stdout is for results
        ort.preload_dlls()


def gpu_options(memory: int) -> dict[str, str]:
    """CUDA's memory pool grows by the requested bytes, not by powers of two, up to `memory` bytes (0: no limit). TF32
    is switched off, because it would change scores by up to 2e-4 (loadtest/README.md).
    """
    cuda = {"arena_extend_strategy": "kSameAsRequested", "use_tf32": "0"}
    return cuda | {"gpu_mem_limit": str(memory)} if memory else cuda


# On a GPU, padded lengths are multiples of this number. Fewer shapes of input then occur. Each shape needs its own
# kernels and memory.
BUCKET = 16
Feeds = dict[str, npt.NDArray[np.int64]]


def padded(ids: Sequence[Sequence[int]], bucket: int, pad_token_id: int, inputs: Collection[str]) -> Feeds:
    """The inputs of an encoder's graph, (N, T) each: N lists of token ids, padded to the longest one, rounded up to a
    multiple of `bucket`."""
    lengths = [len(row) for row in ids]
    filled = np.full((len(ids), rounded_up(max(lengths), bucket)), pad_token_id, np.int64)
    mask = np.zeros_like(filled)
    for row, (tokens, length) in enumerate(zip(ids, lengths, strict=True)):
        filled[row, :length] = tokens
        mask[row, :length] = 1
    feeds = {"input_ids": filled, "attention_mask": mask}
    return feeds | {"token_type_ids": np.zeros_like(filled)} if "token_type_ids" in inputs else feeds


def finite(pooled: Vectors) -> Vectors:
    """The vectors. Raises BackendFailure if a number is NaN or infinite."""
    if not np.isfinite(pooled).all():
        raise BackendFailure("the encoder gave a vector with NaN or infinity")
    return pooled


class OnnxEncoder:
    """Converts token ids to pooled vectors.

    With `threads_alone`, a run that has the device to itself uses `threads_alone` threads instead of `threads`. This
    needs a second session, which has its own copy of the weights.
    """

    def __init__(
        self,
        path: Path,
        threads: int,
        pad_token_id: int = 0,
        *,
        gpu: bool = False,
        threads_alone: int = 0,
        memory: int = 0,
    ) -> None:
        self.session = open_session(path, threads, gpu=gpu, memory=memory)
        self.wide = open_session(path, threads_alone, spin=True) if threads_alone else self.session
        self.same_length = 0  # a batch may have texts of all lengths
        self.bucket = BUCKET if gpu else 1
        self.bound = gpu
        # `run_bound` raises RuntimeError, for example if a batch does not fit into the GPU's memory.
        self.run_errors = (*RUN_ERRORS, RuntimeError) if self.bound else RUN_ERRORS
        self.pad_token_id = pad_token_id
        self.inputs = {value.name for value in self.session.get_inputs()}
        self.dim: int = self.session.get_outputs()[0].shape[1]

    def __call__(self, ids: Sequence[Sequence[int]]) -> Vectors:
        """N lists of token ids -> vectors (N, D) float32. Raises BackendFailure as `run` does."""
        return self.run(self.prepare(ids))

    def prepare(self, ids: Sequence[Sequence[int]]) -> Feeds:
        """Arrays (N, T) of ids and mask, padded to the longest row. On a GPU, T is a multiple of `BUCKET`, so that few
        different shapes occur."""
        return padded(ids, self.bucket, self.pad_token_id, self.inputs)

    def run(self, prepared: Feeds, *, exclusive: bool = False) -> Vectors:
        """Prepared arrays -> vectors (N, D) float32. Thread-safe. `exclusive`: True if no other run is in progress.

        Raises:
            BackendFailure: the run failed, or returned NaN or infinity.
        """
        try:
            session = self.wide if exclusive else self.session
            (pooled,) = run_bound(session, prepared) if self.bound else session.run(["pooled"], prepared)
        except self.run_errors as error:
            count, length = prepared["input_ids"].shape
            raise BackendFailure(f"the encoder failed on a batch of {count} × {length} tokens: {error}") from error
        return finite(pooled)


def run_bound(session: ort.InferenceSession, feeds: Feeds) -> list[Vectors]:
    """Runs the graph and copies only the pooled vectors (N, D) from the device, not the hidden states."""
    binding = session.io_binding()
    for name, value in feeds.items():
        binding.bind_cpu_input(name, value)
    binding.bind_output("pooled", "cpu")
    session.run_with_iobinding(binding)
    outputs: list[Vectors] = binding.copy_outputs_to_cpu()
    return outputs


class OnnxCalibrator:
    """The calibrator graph: converts pooled vectors to latents with a domain's weights. Thread-safe."""

    def __init__(self, path: Path, *, gpu: bool = False) -> None:
        self.session = open_session(path, threads=1, gpu=gpu)
        self.device = "cuda" if gpu else "cpu"
        self.shapes: dict[str, tuple[list[int], str]] = {
            value.name.removeprefix(PREFIX): (value.shape, value.type)
            for value in self.session.get_overridable_initializers()
        }

    def bind(self, weights: Weights) -> "BoundCalibrator":
        """The calibrator with these weights. Raises CorruptArtifact if names, shapes or types do not fit the graph."""
        shapes = {name: (list(array.shape), ONNX_TYPES.get(array.dtype.name)) for name, array in weights.items()}
        if shapes != self.shapes:
            wrong = sorted(name for name in shapes.keys() | self.shapes if shapes.get(name) != self.shapes.get(name))
            raise CorruptArtifact(f"calibrator weights do not fit this encoder's graph: {', '.join(wrong[:5])}")
        values = {
            PREFIX + name: ort.OrtValue.ortvalue_from_numpy(array, self.device) for name, array in weights.items()
        }
        return BoundCalibrator(self.session, values)


ONNX_TYPES = {"float32": "tensor(float)", "int64": "tensor(int64)"}


class BoundCalibrator:
    """The calibrator of one domain version; its weights stay in the memory of the device."""

    def __init__(self, session: ort.InferenceSession, weights: dict[str, Any]) -> None:
        self.session = session
        self.weights = weights

    def __call__(self, pooled: Vectors) -> Vectors:  # (N, D) -> (N, D)
        if not len(pooled):
            return pooled
        feeds = {"pooled": ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(pooled)), **self.weights}
        try:
            (latent,) = self.session.run_with_ort_values(["latent"], feeds)
        except RUN_ERRORS as error:
            raise BackendFailure(f"the calibrator failed on vectors of the shape {pooled.shape}: {error}") from error
        result: npt.NDArray[np.float32] = latent.numpy()
        return result
