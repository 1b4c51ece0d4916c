"""The methods against their definitions, and as weights that the exported graph takes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.covariance import ledoit_wolf

from isosim.arrays import Doubles, Vectors
from isosim.encoders.onnx_engine import OnnxCalibrator
from isosim.encoders.store import EncoderArtifact
from isosim.errors import InvalidInput
from isosim.fitting import linear
from isosim.fitting.flow import PAPER, ROBUST
from isosim.fitting.job import calibrate_job
from isosim.fitting.linear import Spectrum
from isosim.fitting.methods import FittedMap
from isosim.fitting.methods import fit as fit_method
from isosim.jobs.job import METHODS, JobRequest
from isosim.jobs.offline import Encodings
from isosim.jobs.posted import Posted
from isosim.scoring.method import Method
from tests.stores import domains_of
from tests.text import sentences


def sample(count: int, dim: int, seed: int = 0) -> Doubles:
    """Correlated, off-centre, with few strong directions."""
    rng = np.random.default_rng(seed)
    rotation = np.linalg.qr(rng.standard_normal((dim, dim))).Q
    mixing = np.logspace(0, -1, dim)[:, None] * rotation
    return 3 * rng.standard_normal(dim) + rng.standard_normal((count, dim)) @ mixing


def cosines(x: Doubles) -> Doubles:  # (N, D) -> (N, N)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    return unit @ unit.T


@pytest.mark.parametrize("count", [3, 5, 31])
def test_fewer_sentences_than_dimensions_are_whitened_without_blowing_noise_up(count: int) -> None:
    x = sample(count, 32)
    spectrum = Spectrum.from_vectors(x)
    assert 0 < spectrum.shrinkage <= 1
    fresh = sample(500, 32, seed=1) - sample(1, 32, seed=1) + x[0]
    for affine in (linear.whitening(spectrum), linear.tempered_whitening(spectrum, 0.8)):
        assert np.isfinite(affine.matrix).all()
        assert np.linalg.cond(affine.matrix) < 1000
        assert np.isfinite(affine(fresh)).all()


@pytest.mark.parametrize(("count", "dim"), [(2, 8), (40, 16), (16, 40), (2500, 24)])
def test_covariance_and_shrinkage_are_scikit_learns(count: int, dim: int) -> None:
    x = sample(count, dim).astype(np.float32)
    expected, shrinkage = ledoit_wolf(x.astype(np.float64))
    spectrum = Spectrum.from_vectors(x)
    assert abs(spectrum.shrinkage - shrinkage) < 1e-12
    rebuilt = spectrum.vectors * spectrum.values @ spectrum.vectors.T
    np.testing.assert_allclose(rebuilt, expected, atol=1e-10 * np.abs(expected).max())


@given(st.integers(1, 30), st.integers(1, 12), st.integers(0, 1000))
def test_crowding_is_the_mean_cosine_of_all_ordered_pairs_each_vector_with_itself_too(
    count: int, dim: int, seed: int
) -> None:
    x = np.random.default_rng(seed).standard_normal((count, dim)) + 0.5
    assert linear.crowding(x) == pytest.approx(cosines(x).mean(), abs=1e-12)
    assert -1e-12 <= linear.crowding(x) <= 1 + 1e-12


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 50))
def test_soft_whitening_levels_more_the_stronger_it_is_and_never_turns_the_order_of_directions(
    one: float, other: float, seed: int
) -> None:
    x = sample(300, 8, seed)
    spectrum = Spectrum.from_vectors(x)
    spreads = []
    for strength in sorted((one, other)):
        affine = linear.soft_whitening(spectrum, strength)
        left = spectrum.values * np.square(np.diag(spectrum.vectors.T @ affine.matrix @ spectrum.vectors))
        assert (np.diff(left) <= 1e-9 * left[0]).all()
        spreads.append(left[0] / left[-1])
    assert spreads[1] <= spreads[0] * (1 + 1e-9)


@pytest.mark.parametrize("strength", [-0.1, 1.5, float("nan")])
def test_a_strength_outside_zero_to_one_is_refused(strength: float) -> None:
    with pytest.raises(ValueError, match="0 to 1"):
        linear.soft_whitening(Spectrum.from_vectors(sample(50, 8)), strength)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_the_mean_direction_is_removed_by_its_share_and_nothing_else_is(share: float) -> None:
    x = sample(500, 12)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    direction = unit.mean(0) / np.linalg.norm(unit.mean(0))
    y = linear.mean_direction(x, share)(x)
    np.testing.assert_allclose(y @ direction, (1 - share) * (x @ direction), atol=1e-9)
    np.testing.assert_allclose(
        y - np.outer(y @ direction, direction), x - np.outer(x @ direction, direction), atol=1e-9
    )
    with pytest.raises(ValueError, match="within 0 to 1"):
        linear.mean_direction(x, share + 1.5)


def even(values: Doubles) -> Doubles:
    return np.ones_like(values)


@pytest.mark.parametrize(
    ("method", "scale", "centre"),
    [
        (linear.centring, even, 1),
        (linear.whitening, lambda v: v**-0.5, 1),
        (lambda s: linear.whitening(s, power=0.5), lambda v: v**-0.25, 1),
        (lambda s: linear.whitening(s, power=0, centre=0), even, 0),
        (lambda s: linear.whitening(s, keep=5), lambda v: np.where(np.arange(12) < 5, v**-0.5, 0), 1),
        (lambda s: linear.nulling(s, 3), lambda v: (np.arange(12) >= 3) * 1.0, 1),
        (lambda s: linear.tempered_whitening(s, 0.0), even, 0),
        (lambda s: linear.tempered_whitening(s, 0.3), lambda v: v**-0.15, 0.6),
        (lambda s: linear.tempered_whitening(s, 0.8), lambda v: v**-0.4, 1),
        (lambda s: linear.soft_whitening(s, 0.0), even, 0),
        (lambda s: linear.soft_whitening(s, 0.4), lambda v: (0.8 + 0.2 * v / v.mean()) ** -0.5, 0.4),
        (lambda s: linear.soft_whitening(s, 1.0), lambda v: ((1 + v / v.mean()) / 2) ** -0.5, 1),
    ],
)
def test_a_map_scales_each_direction_and_centres_as_its_definition_says(
    method: Callable[[Spectrum], linear.Affine], scale: Callable[[Doubles], Doubles], centre: float
) -> None:
    spectrum = Spectrum.from_vectors(sample(400, 12))
    affine = method(spectrum)
    in_directions = spectrum.vectors.T @ affine.matrix @ spectrum.vectors
    np.testing.assert_allclose(in_directions, np.diag(scale(spectrum.values)), rtol=0, atol=1e-9)
    np.testing.assert_allclose(affine.mean, centre * spectrum.mean, rtol=0, atol=1e-12)


def test_standard_normalization_gives_zero_mean_and_unit_variance_and_spares_constant_dimensions() -> None:
    x = sample(500, 10)
    y = linear.standard_normalization(x)(x)
    np.testing.assert_allclose([y.mean(0), y.std(0)], [np.zeros(10), np.ones(10)], atol=1e-10)
    x[:, 4] = 7
    assert np.abs(linear.standard_normalization(x)(x + 1e-6)).max() < 100


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
