"""The encoder graph on OpenVINO, for processors that multiply bfloat16 numbers (AVX-512 BF16, AMX).

OpenVINO computes each row of a batch independently of the number of rows. The vector of a text depends only on the
length to which it is padded. So a batch has only texts of one padded length, and no vector depends on its batch by a
single bit.
"""

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from isosim.arrays import Vectors
from isosim.encoders.onnx_engine import Feeds, finite, padded
from isosim.encoders.spec import BUCKET
from isosim.encoders.texts import rounded_up
from isosim.errors import BackendFailure, Unavailable

# Importing OpenVINO's telemetry would look up an analytics host and write into the home folder. With this entry, the
# import fails, and OpenVINO works without it.
sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]

try:
    import openvino as ov
    from openvino import properties
    from openvino.properties import hint
except ImportError as error:
    raise Unavailable(f"OpenVINO is not installed ({error}): pip install 'isosim[openvino]'") from error

# OpenVINO can deadlock if the first two inferences of a process run at the same time.
FIRST = threading.Lock()
BF16 = {"avx512_bf16", "amx_bf16", "bf16"}  # flags of processors with bfloat16; the last one is Arm's
REMEDY = "use the encoder at fp32 or int8, or a processor with AVX-512 BF16 or AMX"


class OpenVinoEncoder:
    """Converts token ids to pooled vectors. Thread-safe.

    Args:
        path: the encoder's graph, in float32.
        threads: threads of one run; 0 means one per physical core.
        bf16: multiplies bfloat16 numbers instead of float32 numbers.
        runs: number of runs that compute at the same time.
        threads_alone: threads of a run that has the device to itself; 0: `threads`. Needs a second copy of the weights.

    Raises:
        Unavailable: `bf16`, and the processor would only emulate it.
    """

    same_length = BUCKET  # a batch has only texts that have the same length when rounded up to a multiple of this

    def __init__(
        self,
        path: Path,
        threads: int,
        pad_token_id: int = 0,
        *,
        bf16: bool = False,
        runs: int = 1,
        threads_alone: int = 0,
    ) -> None:
        core, self.pad_token_id = ov.Core(), pad_token_id
        with FIRST:
            kind = ov.Type.bf16 if bf16 else ov.Type.f32
            if bf16:
                check_bf16()
            model = core.read_model(path)
            self.inputs = {value.any_name for value in model.inputs}
            self.dim: int = model.output("pooled").partial_shape[1].get_length()
            self.known_tokens = known_tokens(model)
            shared = compiled(core, model, kind, runs, threads)
            if bf16 and shared.get_property(hint.inference_precision) != ov.Type.bf16:
                raise Unavailable(f"OpenVINO does not compute in bfloat16 on this processor; {REMEDY}")
            self._shared = Requests(shared)
            self._wide = Requests(compiled(core, model, kind, 1, threads_alone)) if threads_alone else self._shared
            for exclusive in (False, True):
                self.run(self.prepare([[pad_token_id] * BUCKET]), exclusive=exclusive)

    def __call__(self, ids: Sequence[Sequence[int]]) -> Vectors:
        """N lists of token ids -> vectors (N, D) float32, in one batch for each padded length. Raises as `run` does."""
        vectors: Vectors = np.empty((len(ids), self.dim), np.float32)
        order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
        for _, group in groupby(order, key=lambda row: rounded_up(len(ids[row]), BUCKET)):
            rows = list(group)
            vectors[rows] = self.run(self.prepare([ids[row] for row in rows]))
        return vectors

    def prepare(self, ids: Sequence[Sequence[int]]) -> Feeds:
        """Arrays (N, T) of ids and mask. T is the padded length of every row.

        Raises:
            ValueError: rows have different padded lengths, which would make vectors depend on their batch.
        """
        if len({rounded_up(len(row), BUCKET) for row in ids}) != 1:
            raise ValueError("texts of different padded lengths share a batch")
        return padded(ids, BUCKET, self.pad_token_id, self.inputs)

    def run(self, prepared: Feeds, *, exclusive: bool = False) -> Vectors:
        """Prepared arrays -> vectors (N, D) float32. `exclusive`: True if no other run is in progress.

        Raises:
            BackendFailure: the run failed, a token is unknown to the encoder, or a vector has NaN or infinity.
        """
        ids = prepared["input_ids"]
        where = f"the encoder failed on a batch of {ids.shape[0]} × {ids.shape[1]} tokens"
        if not ids.size or not 0 <= ids.min() <= ids.max() < self.known_tokens:
            raise BackendFailure(f"{where}: it has no token, or one that the encoder does not know")
        try:
            with (self._wide if exclusive else self._shared).one() as request:
                pooled = request.infer(prepared, share_inputs=True)["pooled"]
        except RuntimeError as error:
            raise BackendFailure(f"{where}: {error}") from error
        return finite(pooled)


class Requests:
    """The requests of a compiled model. A request runs one batch at a time, and keeps its memory for the next one."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.idle: list[Any] = []

    @contextmanager
    def one(self) -> Iterator[Any]:
        """A request that no other thread uses."""
        try:
            request = self.idle.pop()  # atomic
        except IndexError:
            request = self.model.create_infer_request()
        try:
            yield request
        finally:
            self.idle.append(request)


def compiled(core: Any, model: Any, kind: Any, runs: int, threads: int) -> Any:
    """The model for `runs` parallel runs of `threads` threads each, none of which is bound to a core."""
    options = {
        hint.inference_precision: kind,
        hint.enable_cpu_pinning: False,  # a container may have a share of all cores instead of cores of its own
        properties.num_streams: runs,
    }
    if threads:
        options[properties.inference_num_threads] = runs * threads
    return core.compile_model(model, "CPU", options)


def known_tokens(model: Any) -> int:
    """Number of rows of the table that the token ids index; without such a table, a number above all ids. OpenVINO
    reads zeros for a token beyond the table, without an error."""
    for table in (one for one in model.get_ordered_ops() if one.get_type_name() == "Gather"):
        index = table.input_value(1).get_node()
        while index.get_type_name() in ("Convert", "Reshape"):
            index = index.input_value(0).get_node()
        if index.get_friendly_name() == "input_ids":
            return int(table.input_value(0).get_partial_shape()[0].get_length())
    return sys.maxsize


def check_bf16(cpu: Path = Path("/proc/cpuinfo")) -> None:
    """Raises Unavailable if the processor does not multiply bfloat16 numbers. OpenVINO also states bfloat16 as a
    capability, and as what it uses, where it only emulates it, which takes 33 times as long as float32."""
    flags = cpu.read_text().split() if cpu.exists() else []
    if BF16.isdisjoint(flags):
        raise Unavailable(f"this processor has no bfloat16, or only emulates it; {REMEDY}")
