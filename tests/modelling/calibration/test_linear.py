"""The linear methods against their definitions."""

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


def covariance(x: Doubles) -> Doubles:
    return np.cov(x, rowvar=False)


def test_whitening_leaves_equal_variance_in_all_directions_and_no_correlation() -> None:
    x = sample(20_000, 12)
    spectrum = Spectrum.from_vectors(x)
    y = linear.whitening(spectrum)(x)
    np.testing.assert_allclose(y.mean(0), 0, atol=1e-10)
    np.testing.assert_allclose(covariance(y), np.eye(12), atol=0.01)


def test_partial_whitening_takes_each_eigenvalue_to_its_power() -> None:
    x = sample(20_000, 8)
    spectrum = Spectrum.from_vectors(x)
    y = linear.whitening(spectrum, power=0.5)(x)
    expected = np.sqrt(spectrum.values)
    np.testing.assert_allclose(np.linalg.eigvalsh(covariance(y))[::-1], expected, rtol=0.01)


def test_whitening_without_power_and_centre_is_the_identity() -> None:
    affine = linear.whitening(Spectrum.from_vectors(sample(200, 24)), power=0, centre=0)
    np.testing.assert_allclose(affine.matrix, np.eye(24), rtol=0, atol=1e-12)
    np.testing.assert_array_equal(affine.mean, np.zeros(24))


@pytest.mark.parametrize("k", [1, 5, 24])
def test_whitening_k_has_the_cosines_of_the_projection_to_k_dimensions(k: int) -> None:
    x = sample(300, 24)
    spectrum = Spectrum.from_vectors(x)
    projected = (x - spectrum.mean) @ (spectrum.vectors[:, :k] / np.sqrt(spectrum.values[:k]))
    latents = linear.whitening(spectrum, keep=k)(x)
    assert np.linalg.matrix_rank(latents) == k
    np.testing.assert_allclose(cosines(latents), cosines(projected), rtol=0, atol=1e-9)


@pytest.mark.parametrize("k", [0, 1, 3])
def test_nulling_removes_the_strongest_directions_and_no_other(k: int) -> None:
    x = sample(400, 10)
    centred = x - x.mean(0)
    directions = np.linalg.svd(centred, full_matrices=False)[2]
    y = linear.nulling(Spectrum.from_vectors(x), k)(x)
    np.testing.assert_allclose(y @ directions[:k].T, 0, atol=1e-9)
    np.testing.assert_allclose(y @ directions[k:].T, centred @ directions[k:].T, atol=1e-9)


def test_standard_normalization_gives_zero_mean_and_unit_variance_a_dimension() -> None:
    x = sample(500, 10)
    y = linear.standard_normalization(x)(x)
    np.testing.assert_allclose(y.mean(0), 0, atol=1e-10)
    np.testing.assert_allclose(y.std(0), 1, atol=1e-10)


def test_standard_normalization_does_not_blow_a_constant_dimension_up() -> None:
    x = sample(500, 10)
    x[:, 4] = 7
    assert np.abs(linear.standard_normalization(x)(x + 1e-6)).max() < 100


def test_centring_takes_the_mean_away_and_nothing_else() -> None:
    x = sample(50, 10)
    np.testing.assert_allclose(linear.centring(Spectrum.from_vectors(x))(x), x - x.mean(0), atol=1e-12)


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


def test_vectors_that_are_all_one_have_no_shrinkage() -> None:
    assert Spectrum.from_vectors(np.ones((300, 8), np.float32)).shrinkage == 0


def test_the_spectrum_falls_and_its_directions_are_orthonormal() -> None:
    spectrum = Spectrum.from_vectors(sample(100, 16))
    assert (np.diff(spectrum.values) <= 0).all()
    assert (spectrum.values > 0).all()
    np.testing.assert_allclose(spectrum.vectors.T @ spectrum.vectors, np.eye(16), atol=1e-12)


@given(st.integers(1, 30), st.integers(1, 12), st.integers(0, 1000))
def test_crowding_is_the_mean_cosine_of_all_ordered_pairs_each_vector_with_itself_too(
    count: int, dim: int, seed: int
) -> None:
    x = np.random.default_rng(seed).standard_normal((count, dim)) + 0.5
    assert linear.crowding(x) == pytest.approx(cosines(x).mean(), abs=1e-12)
    assert -1e-12 <= linear.crowding(x) <= 1 + 1e-12


def test_tempered_whitening_of_an_uncrowded_space_is_the_identity() -> None:
    affine = linear.tempered_whitening(Spectrum.from_vectors(sample(100, 8)), 0.0)
    np.testing.assert_allclose(affine.matrix, np.eye(8), rtol=0, atol=1e-12)
    np.testing.assert_array_equal(affine.mean, np.zeros(8))


def test_tempered_whitening_grows_to_whitening_as_the_space_gets_crowded() -> None:
    x = sample(500, 8)
    spectrum = Spectrum.from_vectors(x)
    spreads = [np.linalg.cond(covariance(linear.tempered_whitening(spectrum, c)(x))) for c in (0, 0.3, 0.6, 1)]
    assert spreads == sorted(spreads, reverse=True)
    whitened = linear.whitening(spectrum)
    np.testing.assert_allclose(linear.tempered_whitening(spectrum, 1.0)(x), whitened(x), atol=1e-12)


def test_soft_whitening_of_no_strength_is_the_identity() -> None:
    affine = linear.soft_whitening(Spectrum.from_vectors(sample(100, 24)), 0.0)
    np.testing.assert_allclose(affine.matrix, np.eye(24), rtol=0, atol=1e-12)
    np.testing.assert_array_equal(affine.mean, np.zeros(24))


def test_full_soft_whitening_whitens_a_covariance_half_way_to_the_identity() -> None:
    x = sample(500, 12)
    spectrum = Spectrum.from_vectors(x)
    covariance = (spectrum.vectors * spectrum.values) @ spectrum.vectors.T / spectrum.values.mean()
    affine = linear.soft_whitening(spectrum, 1.0)
    np.testing.assert_allclose(np.linalg.inv(affine.matrix @ affine.matrix), (covariance + np.eye(12)) / 2, atol=1e-9)
    np.testing.assert_allclose(affine(x).mean(0), 0, atol=1e-10)


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


def test_a_zero_vector_does_not_spoil_the_crowding() -> None:
    x = sample(50, 8)
    x[7] = 0
    assert np.isfinite(linear.crowding(x))


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
