"""`python -m loadtest.waiting_encoder`: `isosim serve` with an encoder that waits instead of computing.

A request then takes only the processor time of the service itself. The encoder releases the interpreter's lock while it
waits, like the real encoder while a GPU computes. Its vectors are random.
"""

import time
from typing import Any

import numpy as np

from isosim.arrays import Vectors
from isosim.cli import main
from isosim.encoders import engines, probe
from isosim.encoders.onnx_engine import Feeds, OnnxEncoder

RUN, TOKEN = 1e-3, 1e-6  # s per run and per padded token: estimates for a small encoder on a large GPU
VECTORS = 1024  # number of distinct vectors


class WaitingEncoder(OnnxEncoder):
    """Prepares batches like the real encoder, but waits instead of running them."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        vectors = np.random.default_rng(0).standard_normal((VECTORS, self.dim), np.float32)
        self.vectors: Vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def run(self, prepared: Feeds, *, exclusive: bool = False) -> Vectors:
        ids = prepared["input_ids"]
        time.sleep(RUN + TOKEN * ids.size)
        drawn: Vectors = self.vectors[ids.sum(1) % VECTORS]
        return drawn


if __name__ == "__main__":
    # Replaces the real class here, because the service has no setting for an encoder that waits.
    engines.OnnxEncoder = WaitingEncoder  # type: ignore[attr-defined]
    probe.check = lambda *_: 0.0
    main()
