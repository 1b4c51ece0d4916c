"""The graphs on a GPU; skipped where ONNX Runtime cannot use one. Run on an NVIDIA H200 (loadtest/README.md)."""

import numpy as np
import pytest

from isosim.arrays import Vectors
from isosim.encoders.onnx_engine import OnnxCalibrator, OnnxEncoder, cuda_loads
from isosim.encoders.store import EncoderArtifact
from isosim.errors import BackendFailure
from isosim.export.graph import random_weights


@pytest.fixture(scope="module", autouse=True)
def device(tiny: EncoderArtifact) -> None:
    if not cuda_loads(tiny.calibrator):
        pytest.skip("ONNX Runtime finds no GPU")


@pytest.fixture(scope="module")
def encoder(tiny: EncoderArtifact) -> OnnxEncoder:
    return OnnxEncoder(tiny.encoder, 0, gpu=True)


def rows(count: int, longest: int = 60) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(5, 100, length).tolist() for length in rng.integers(1, longest, count)]


def alone(encoder: OnnxEncoder, ids: list[list[int]]) -> Vectors:
    return np.concatenate([encoder([row]) for row in ids])


def test_vectors_are_those_of_the_processor(tiny: EncoderArtifact, encoder: OnnxEncoder) -> None:
    ids = rows(40)
    np.testing.assert_allclose(alone(encoder, ids), alone(OnnxEncoder(tiny.encoder, 1), ids), atol=1e-5)


def test_a_vector_does_not_depend_on_its_batch(encoder: OnnxEncoder) -> None:
    ids = rows(200)
    np.testing.assert_allclose(encoder(ids), alone(encoder, ids), atol=1e-5)


def test_latents_are_those_of_the_processor(tiny: EncoderArtifact) -> None:
    weights = {name: tensor.numpy() for name, tensor in random_weights(32, 0).items()}
    x = np.random.default_rng(0).standard_normal((300, 32)).astype(np.float32)
    on_gpu, on_cpu = (OnnxCalibrator(tiny.calibrator, gpu=gpu).bind(weights)(x) for gpu in (True, False))
    np.testing.assert_allclose(on_gpu, on_cpu, atol=1e-4)


def test_a_batch_that_does_not_fit_fails_alone(tiny: EncoderArtifact) -> None:
    encoder = OnnxEncoder(tiny.encoder, 0, gpu=True, memory=64 * 2**20)
    before = encoder([[5, 6, 7]])
    with pytest.raises(BackendFailure, match=r"4096 × 64 tokens.*memory"):
        encoder([[5] * 64] * 4096)
    np.testing.assert_allclose(encoder([[5, 6, 7]]), before, atol=1e-5)
