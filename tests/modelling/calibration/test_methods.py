"""Every method a caller may ask for becomes weights that the exported graph takes and agrees with."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isosim.arrays import Vectors
from isosim.encoders.onnx_engine import OnnxCalibrator
from isosim.encoders.store import EncoderArtifact
from isosim.errors import InvalidInput
from isosim.fitting import linear
from isosim.fitting.flow import PAPER, ROBUST
from isosim.fitting.job import calibrate_job
from isosim.fitting.methods import FittedMap
from isosim.fitting.methods import fit as fit_method
from isosim.jobs.job import METHODS, JobRequest
from isosim.jobs.offline import Encodings
from isosim.jobs.posted import Posted
from isosim.scoring.method import Method
from tests.stores import domains_of
from tests.text import sentences


def crowded(count: int, dim: int, seed: int = 0) -> Vectors:
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((dim, dim)) * np.logspace(0, -1, dim)[:, None]
    x = 4 * rng.standard_normal(dim) + rng.standard_normal((count, dim)) @ mixing
    return x.astype(np.float32)


TRAIN, HELD_OUT = np.split(crowded(400, 32), [300])
FEW_STEPS = replace(ROBUST, max_steps=6, check_every=3)
SHORT = {
    "flow": FEW_STEPS, "soft-flow": FEW_STEPS, "soft-flow:0.4": FEW_STEPS, "flow-paper": replace(PAPER, max_steps=6),
}  # fmt: skip
ARGUMENTS = ["nulling:1", "sn-nulling:2", "whitening-k:8", "partial:0.3", "soft:0.4", "soft-flow:0.4"]


def fit(method: str, *given: Any, **options: Any) -> FittedMap:
    return fit_method(Method.parse(method), *given, **options)


@pytest.fixture(scope="module")
def graph(tiny: EncoderArtifact) -> OnnxCalibrator:
    return OnnxCalibrator(tiny.calibrator)


@pytest.mark.parametrize("method", [*(m for m in METHODS if m != "auto"), *ARGUMENTS])
def test_a_methods_weights_fit_the_exported_graph_and_agree_with_torch(graph: OnnxCalibrator, method: str) -> None:
    fitted = fit(method, TRAIN, HELD_OUT, seed=0, flow_settings=SHORT.get(method))
    latents = fitted(HELD_OUT)
    if fitted.weights is None:
        np.testing.assert_array_equal(latents, HELD_OUT)
        return
    assert not np.allclose(latents, HELD_OUT, atol=0.01)
    np.testing.assert_allclose(graph.bind(fitted.weights)(HELD_OUT), latents, rtol=0, atol=1e-4)


ONE, OTHER = crowded(2, 32, seed=9)


class OneVector:
    """An encoder that gives every text but the seventh the same vector."""

    def __call__(self, texts: Sequence[str], progress: Callable[[float], None] = lambda _: None) -> Encodings:
        encodings = Encodings.build(len(texts), len(ONE))
        encodings.vectors[:], encodings.tokens[:] = ONE, 8
        encodings.vectors[6] = OTHER
        return encodings


@pytest.mark.parametrize("method", [*(m for m in METHODS if m not in ("auto", "identity")), *ARGUMENTS])
@pytest.mark.parametrize("vector", [ONE, np.zeros(32, np.float32)])
def test_equal_vectors_are_refused_by_name_and_not_fitted_to(method: str, vector: Vectors) -> None:
    equal = np.repeat(vector[None], 249, axis=0)
    with pytest.raises(InvalidInput, match="the same vector"):
        fit(method, equal, equal[:25], seed=0)


@pytest.mark.parametrize("method", [m for m in METHODS if m not in ("auto", "identity")])
def test_one_vector_that_differs_is_enough_for_finite_weights(method: str) -> None:
    vectors = np.repeat(ONE[None], 250, axis=0)
    vectors[6] = OTHER
    fitted = fit(method, vectors, vectors[:25], seed=0, flow_settings=SHORT.get(method))
    assert all(np.isfinite(array).all() for array in (fitted.weights or {}).values())
    assert np.isfinite(fitted(vectors)).all()


def test_text_whose_vectors_are_nearly_all_equal_is_refused(tiny: EncoderArtifact, tmp_path: Path) -> None:
    wanted = JobRequest("same", tiny.digest, tiny.id, sentences=250)
    posted, domains = Posted(sentences(250)), domains_of(tmp_path)
    with pytest.raises(InvalidInput, match=r"only 2 distinct vectors.*cannot tell the sentences apart"):
        calibrate_job(wanted, posted, tiny, domains, lambda *_: None, threads=1, encode=OneVector())


@pytest.mark.parametrize("method", ["magic", "auto", "", "flow:3", "flow-paper:3", "identity:1"])
def test_an_unknown_method_is_refused(method: str) -> None:
    with pytest.raises(ValueError, match="no method"):
        fit(method, TRAIN, HELD_OUT, seed=0)


@pytest.mark.parametrize(
    "method", ["centring", "sn", "tempered", "whitening", "partial", "whitening-k:8", "soft", "soft-flow"]
)
def test_methods_that_spread_a_crowded_space_spread_it(method: str) -> None:
    before = linear.crowding(HELD_OUT.astype(np.float64))
    fitted = fit(method, TRAIN, HELD_OUT, seed=0, flow_settings=SHORT.get(method))
    after = linear.crowding(fitted(HELD_OUT).astype(np.float64))
    assert before > 0.5
    assert after < 0.1


@pytest.mark.parametrize("method", [*(m for m in METHODS if m not in {"auto", "identity"}), *ARGUMENTS])
def test_a_map_fitted_again_to_the_same_text_is_the_same_map(method: str) -> None:
    settings = SHORT.get(method)
    fitted = fit(method, TRAIN, TRAIN[:0], 3, flow_settings=replace(settings, check_every=0) if settings else None)
    again = fitted.refit(TRAIN)
    assert again.method == fitted.method
    np.testing.assert_allclose(again(HELD_OUT), fitted(HELD_OUT), rtol=0, atol=1e-4)


@pytest.mark.parametrize("method", ["tempered", "whitening", "flow", "soft", "soft:0.4", "soft-flow", "soft-flow:0.4"])
def test_a_map_fitted_again_to_other_text_keeps_its_strength(method: str) -> None:
    fitted = fit(method, TRAIN, HELD_OUT, 0, flow_settings=SHORT.get(method))
    again = fitted.refit(TRAIN[:150])
    kept = {"shrinkage", "crowding", "steps", "permutation", "start_deviation"}
    for name in kept & fitted.settings.keys():
        assert again.settings[name] == fitted.settings[name]
    assert not np.array_equal(again(HELD_OUT), fitted(HELD_OUT))


def test_a_known_spectrum_gives_the_same_map() -> None:
    spectrum = linear.Spectrum.from_vectors(TRAIN.astype(np.float64))
    for method in ("whitening", "soft:0.4", "tempered", "nulling"):
        fitted = fit(method, TRAIN, HELD_OUT, 0, spectrum=spectrum)
        np.testing.assert_array_equal(fitted(HELD_OUT), fit(method, TRAIN, HELD_OUT, 0)(HELD_OUT))
