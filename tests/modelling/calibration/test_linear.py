"""The linear methods against their definitions."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.covariance import ledoit_wolf

from isosim.arrays import Doubles
from isosim.fitting import linear
from isosim.fitting.linear import Spectrum


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
