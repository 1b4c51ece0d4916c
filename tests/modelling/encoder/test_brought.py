"""Registering an encoder whose vectors its users bring."""

from pathlib import Path

import numpy as np
import pytest

from isosim.encoders.brought import encoded
from isosim.encoders.onnx_engine import OnnxCalibrator
from isosim.encoders.store import EncoderStore
from isosim.errors import InvalidInput
from isosim.export.brought import register
from isosim.fitting.methods import fit
from isosim.jobs.offline import BroughtItems, find_unreadable, open_texts
from isosim.scoring.method import Method


def test_it_has_a_calibrator_and_nothing_else(tmp_path: Path) -> None:
    made = register(tmp_path, "ours", 24, unit=True)
    found = EncoderStore.at(tmp_path).find("ours")
    assert (found, found.kind, found.unit_vectors, found.spec.dim) == (made, "vectors", True, 24)
    assert sorted(path.name for path in found.folder.iterdir()) == ["calibrator.onnx", "manifest.json"]
    vectors = np.random.default_rng(0).normal(size=(600, 24)).astype(np.float32)
    fitted = fit(Method("soft", 0.5), vectors, vectors[:50], 0)
    assert fitted.weights is not None
    latents = OnnxCalibrator(found.calibrator).bind(fitted.weights)(vectors)
    assert np.allclose(latents, fitted(vectors), atol=1e-5)


def test_the_same_again_is_the_same_and_another_is_refused(tmp_path: Path) -> None:
    made = register(tmp_path, "ours", 24, unit=True)
    assert register(tmp_path, "ours", 24, unit=True).digest == made.digest
    for dim, unit, said in ((25, True, "with --dimensions 24"), (24, False, "with --unit-vectors True")):
        with pytest.raises(InvalidInput, match=said):
            register(tmp_path, "ours", dim, unit=unit)
    assert register(tmp_path, "theirs", 24, unit=True).digest != made.digest  # their vectors are others


@pytest.mark.parametrize("dim", [0, 7, 16_385])
def test_a_dimension_that_cannot_be_calibrated_is_refused(tmp_path: Path, dim: int) -> None:
    with pytest.raises(InvalidInput, match="8 to 16,384"):
        register(tmp_path, "ours", dim, unit=False)


def test_an_exported_encoder_keeps_its_name(store: Path) -> None:
    with pytest.raises(InvalidInput, match="encoder tiny exists already and is of another kind"):
        register(store, "tiny", 24, unit=False)


def test_it_encodes_no_text_and_reads_vectors_that_stand_for_it(tmp_path: Path) -> None:
    made = register(tmp_path, "ours", 8, unit=False)
    with pytest.raises(InvalidInput, match="its users bring their own"):
        open_texts(made)
    assert find_unreadable(["a text"], made) == set()
    vectors = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
    items = BroughtItems(made)([encoded(vector) for vector in vectors])
    assert np.array_equal(items.vectors, vectors)
