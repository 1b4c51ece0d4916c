"""The encoder of the app in a command's process."""

import numpy as np

from isosim.encoders.engines import LateEncoder
from isosim.encoders.onnx_engine import OnnxEncoder
from isosim.encoders.store import EncoderArtifact


def test_a_late_encoder_is_opened_once_and_by_its_first_batch(tiny: EncoderArtifact) -> None:
    opened: list[OnnxEncoder] = []

    def open_encoder() -> OnnxEncoder:
        opened.append(OnnxEncoder(tiny.encoder, 1))
        return opened[-1]

    late = LateEncoder(open_encoder)
    assert not opened
    vectors = [late.run(late.prepare([[2, 5, 3], [2, 3]])) for _ in range(2)]
    assert len(opened) == 1
    np.testing.assert_array_equal(vectors, [opened[0]([[2, 5, 3], [2, 3]])] * 2)
