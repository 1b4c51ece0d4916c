"""The standalone graph: a domain's weights baked in, the numbers of the service."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from isosim.arrays import Weights
from isosim.domains.domain import Version
from isosim.domains.store import StoredVersion
from isosim.encoders.onnx_engine import PREFIX, open_session
from isosim.encoders.store import EncoderArtifact, EncoderStore
from isosim.errors import CorruptArtifact
from isosim.export.graph import random_weights
from isosim.export.model_store import bundle
from isosim.scoring.calibration import DomainModel

IDS = np.array([[2, 17, 350, 44, 99, 5, 3], [2, 8, 3, 0, 0, 0, 0]])
TOKENS = {"input_ids": IDS, "attention_mask": (IDS > 0).astype(np.int64), "token_type_ids": np.zeros_like(IDS)}
VERSION = Version(3, "a" * 64, "tiny", "flow", {}, "", "")


@pytest.fixture(scope="module")
def weights(tiny: EncoderArtifact) -> Weights:
    return {name: tensor.numpy() for name, tensor in random_weights(tiny.spec.dim, seed=5).items()}


@pytest.fixture(scope="module")
def bundled(tiny: EncoderArtifact, weights: Weights, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "model.onnx"
    bundle(tiny, "letters", StoredVersion(VERSION, weights, DomainModel()), path)
    return path


def test_a_bundle_gives_the_encoders_bits_and_the_calibrators_without_being_passed_weights(
    tiny: EncoderArtifact, weights: Weights, bundled: Path
) -> None:
    (expected_pooled,) = open_session(tiny.encoder, threads=1).run(["pooled"], TOKENS)
    given = {PREFIX + name: array for name, array in weights.items()} | {"pooled": expected_pooled}
    (expected_latent,) = open_session(tiny.calibrator, threads=1).run(["latent"], given)
    pooled, latent = open_session(bundled, threads=1).run(["pooled", "latent"], TOKENS)
    np.testing.assert_array_equal(pooled, expected_pooled)
    np.testing.assert_allclose(latent, expected_latent, rtol=0, atol=1e-4)
    assert np.abs(latent - pooled).max() > 0.1
    session = open_session(bundled, threads=1)
    assert {value.name for value in session.get_inputs()} == set(TOKENS)
    assert session.get_overridable_initializers() == []


def test_a_bundle_runs_on_a_plain_onnx_runtime_and_says_where_it_comes_from(
    tiny: EncoderArtifact, bundled: Path
) -> None:
    facts = ort.InferenceSession(bundled, providers=["CPUExecutionProvider"]).get_modelmeta().custom_metadata_map
    assert facts["isosim.domain"] == "letters"
    assert facts["isosim.version"] == "3"
    assert facts["isosim.method"] == "flow"
    assert facts["isosim.encoder"] == tiny.digest
    assert facts["isosim.max_length"] == "32"


def test_the_stores_graph_is_not_touched_and_a_changed_one_is_refused(store: Path, tmp_path: Path) -> None:
    encoder = EncoderStore.at(store).find("tiny")
    before = encoder.encoder.read_bytes()
    bundle(encoder, "letters", StoredVersion(VERSION, None, DomainModel()), tmp_path / "model.onnx")
    assert encoder.encoder.read_bytes() == before
    pooled, latent = open_session(tmp_path / "model.onnx", threads=1).run(["pooled", "latent"], TOKENS)
    np.testing.assert_array_equal(pooled, latent)  # identity
    onnx.save(onnx.load(tmp_path / "model.onnx"), encoder.encoder)
    with pytest.raises(CorruptArtifact, match=r"encoder\.onnx"):
        bundle(encoder, "letters", StoredVersion(VERSION, None, DomainModel()), tmp_path / "other.onnx")
