"""The service with an encoder that computes nothing: `python -m loadtest.waiting_encoder`, settings as `isosim serve`.

What is left of a request's processor time is what surrounds the encoder. A run waits outside of the interpreter's lock,
as a run on a GPU does; its vectors are drawn by chance.
"""

import time
from typing import Any

import numpy as np

from service.adapters.encoder import probe
from service.adapters.encoder.onnx_engine import Feeds, OnnxEncoder
from service.cli import main
from service.core.arrays import Vectors
from service.migration import encoders

RUN, TOKEN = 1e-3, 1e-6  # s of a run and of each padded token in it: a small encoder on a large GPU, not measured
VECTORS = 1024  # different ones


class WaitingEncoder(OnnxEncoder):
    """Prepares batches as the real encoder does, and waits in the place of running them."""

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
    # Put in the place of the real one, since no setting of the service should name an encoder that computes nothing.
    encoders.OnnxEncoder = WaitingEncoder  # type: ignore[attr-defined]
    probe.check = lambda *_: 0.0
    main()
