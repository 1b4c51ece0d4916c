"""Encoders whose vectors their users bring: registration, and calibrations beside those of the texts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isosim.encoders.brought import encoded
from isosim.encoders.onnx_engine import OnnxCalibrator
from isosim.encoders.store import EncoderArtifact, EncoderStore
from isosim.errors import InvalidInput
from isosim.export.brought import register
from isosim.fitting.job import calibrate_job
from isosim.fitting.methods import fit
from isosim.fitting.publication import Fit
from isosim.jobs.job import JobRequest, LabelledPair
from isosim.jobs.offline import BroughtItems, find_unreadable, open_texts
from isosim.jobs.posted import Posted
from isosim.jobs.vector_files import NpyFile, rows_at
from isosim.scoring.advice import Target, advise
from isosim.scoring.method import Method
from tests.stores import domains_of
from tests.text import sentences

TEXTS = sentences(1500)


def calibrated(artifact: EncoderArtifact, inputs: Posted, store: Path, **asked: Any) -> Fit:
    request = JobRequest("d", artifact.digest, artifact.id, **asked)
    return calibrate_job(request, inputs, artifact, domains_of(store), lambda _, __: None, threads=1)


@pytest.fixture(scope="module")
def vectors(tiny: EncoderArtifact, tmp_path_factory: pytest.TempPathFactory) -> NpyFile:
    path = tmp_path_factory.mktemp("vectors") / "vectors.npy"
    np.save(path, open_texts(tiny)(TEXTS).vectors)
    return NpyFile(path)


@pytest.fixture(scope="module")
def ours(vectors: NpyFile, tmp_path_factory: pytest.TempPathFactory) -> EncoderArtifact:
    return register(tmp_path_factory.mktemp("brought"), "ours", vectors.dim, unit=False)


TARGETS = [Target(fmr=0.01), Target(fmr=1e-4), Target(false_hit_rate=0.01, gallery=1000)]


@pytest.mark.parametrize("method", ["identity", "soft:0.5", "mean-direction"])
def test_the_thresholds_are_those_of_the_exported_encoder(
    tiny: EncoderArtifact, ours: EncoderArtifact, vectors: NpyFile, tmp_path: Path, method: str
) -> None:
    by_text = calibrated(tiny, Posted(TEXTS), tmp_path, method=method)
    brought = calibrated(ours, Posted([], (), vectors), tmp_path, method=method)
    assert brought.report["sentences"] == by_text.report["sentences"] == len(TEXTS)
    for target in TARGETS:
        for raw in (False, True):
            one, other = (advise(made.model, "d", target, raw=raw) for made in (by_text, brought))
            assert abs(one.similarity - other.similarity) < 1e-6
            assert np.allclose(one.interval, other.interval, atol=1e-6)
    assert by_text.model.domain_test is not None
    assert brought.model.domain_test is None


def test_with_texts_the_surface_decides_and_without_the_method_is_identity(
    tiny: EncoderArtifact, ours: EncoderArtifact, vectors: NpyFile, tmp_path: Path
) -> None:
    alone = calibrated(ours, Posted([], (), vectors), tmp_path).report
    assert (alone["method"], alone["evidence"]) == ("identity", None)
    together = calibrated(ours, Posted(TEXTS, (), vectors), tmp_path).report
    by_text = calibrated(tiny, Posted(TEXTS), tmp_path).report
    assert together["evidence"]["rawness"] == pytest.approx(by_text["evidence"]["rawness"], rel=1e-6)
    assert together["evidence"]["recognition"] is None
    assert "rawness" in alone["not_judged"]
    assert "rawness" not in together["not_judged"]


def test_labelled_rows_are_the_labelled_vectors(ours: EncoderArtifact, vectors: NpyFile, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [LabelledPair(str(a), str(b), float(n % 2)) for n, (a, b) in enumerate(rng.integers(0, 1500, (80, 2)))]
    made = calibrated(ours, Posted([], rows, vectors), tmp_path)
    assert made.labels is not None
    assert made.labels.posted == 80
    assert made.model.probability is not None


def test_it_has_a_calibrator_and_nothing_else(ours: EncoderArtifact, vectors: NpyFile) -> None:
    found = EncoderStore.at(ours.folder.parents[2]).find("ours")
    assert (found, found.kind, found.unit_vectors, found.spec.dim) == (ours, "vectors", False, 32)
    assert sorted(path.name for path in found.folder.iterdir()) == ["calibrator.onnx", "manifest.json"]
    x = rows_at(vectors, np.arange(600))
    fitted = fit(Method("soft", 0.5), x, x[:50], 0)
    assert fitted.weights is not None
    latents = OnnxCalibrator(found.calibrator).bind(fitted.weights)(x)
    assert np.allclose(latents, fitted(x), atol=1e-5)


def test_the_same_again_is_the_same_and_another_is_refused(ours: EncoderArtifact, store: Path) -> None:
    place = ours.folder.parents[2]
    assert register(place, "ours", 32, unit=False).digest == ours.digest
    for folder, name, dim, unit, said in (
        (place, "ours", 33, False, "with --dimensions 32"),
        (place, "ours", 32, True, "with --unit-vectors False"),
        (store, "tiny", 24, False, "encoder tiny exists already and is of another kind"),
        *((store, "new", dim, False, "8 to 16,384") for dim in (0, 7, 16_385)),
    ):
        with pytest.raises(InvalidInput, match=said):
            register(folder, name, dim, unit=unit)


def test_it_encodes_no_text_and_reads_vectors_that_stand_for_it(ours: EncoderArtifact, vectors: NpyFile) -> None:
    with pytest.raises(InvalidInput, match="its users bring their own"):
        open_texts(ours)
    assert find_unreadable(["a text"], ours) == set()
    x = rows_at(vectors, np.arange(3))
    assert np.array_equal(BroughtItems(ours)([encoded(row) for row in x]).vectors, x)
