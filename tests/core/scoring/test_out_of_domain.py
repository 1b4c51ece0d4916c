"""The out-of-domain test as it is asked and stored."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isosim.arrays import Doubles, Vectors
from isosim.scoring.out_of_domain import (
    CLIP,
    FLOOR,
    check_lengths,
    level_energies,
)
from tests.core.scoring.references import a_test


def vectors(count: int, dim: int = 12, seed: int = 1) -> Vectors:
    return (2 * np.random.default_rng(seed).standard_normal((count, dim))).astype(np.float32)


def lengths(count: int, seed: int = 2) -> npt.NDArray[np.intp]:
    return np.random.default_rng(seed).integers(1, 200, count)


@settings(max_examples=30)
@given(st.sampled_from([8, 12, 130, 384]), st.integers(0, 3), st.booleans(), st.integers(2, 70), st.integers(0, 99))
def test_a_vector_is_judged_the_same_whatever_else_is_in_the_batch(
    dim: int, levels: int, probe: bool, count: int, seed: int
) -> None:
    test = a_test(dim, levels, probe=probe, seed=seed)
    x, tokens = vectors(count, dim, seed), lengths(count, seed)
    energies = np.random.default_rng(seed).standard_normal((count, levels)) if levels else None
    together = test.judge(x, tokens, energies)
    for row in {0, count // 2, count - 1}:
        one = slice(row, row + 1)
        alone = test.judge(x[one], tokens[one], None if energies is None else energies[one])
        np.testing.assert_allclose(alone, together[one], rtol=1e-9)


@pytest.mark.parametrize("levels", [0, 2])
@pytest.mark.parametrize("probe", [False, True])
def test_the_statistics_are_log_energies_levels_and_the_probes_score(levels: int, probe: bool) -> None:
    s = a_test(levels=levels, probe=probe).statistics
    x = 3 * vectors(40)
    given_levels = np.random.default_rng(3).standard_normal((40, levels)) if levels else None
    centred = x.astype(np.float64) - s.mean
    z = centred @ s.whitening.astype(np.float64)
    parts: list[Doubles] = [z, z[:, :3], z[:, 3:6], z[:, 6:], centred, x.astype(np.float64)]
    expected = [np.log(np.square(part).sum(1)) for part in parts]
    if given_levels is not None:
        expected += list(given_levels.T)
    if probe:
        clipped = np.clip(z, -CLIP, CLIP)
        assert (clipped != z).any()
        expected.append(np.concatenate([clipped, clipped**2], 1) @ s.probe)
    np.testing.assert_allclose(s(x, given_levels), np.stack(expected, 1), rtol=1e-5, atol=1e-5)


def test_a_statistic_is_in_standard_deviations_of_texts_of_the_same_length() -> None:
    test = a_test()
    n = test.standardization
    x = vectors(1)
    raw = test.statistics(x)
    for tokens, mean, deviation in [
        (5, n.location[0, 0], n.scale[0, 0]),
        (10, n.location[:2, 0].mean(), n.scale[:2, 0].mean()),  # half-way from 5 to 20 in log tokens
        (20, n.location[1, 0], n.scale[1, 0]),
        (60, n.location[2, 0], n.scale[2, 0]),
    ]:
        found = n(raw, np.array([tokens]))[0, 0]
        assert found == pytest.approx((raw[0, 0] - mean) / deviation)


def test_texts_shorter_or_longer_than_any_are_judged_like_the_shortest_and_the_longest() -> None:
    test = a_test()
    x = np.repeat(vectors(1), 6, axis=0)
    judged = test.judge(x, np.array([0, 1, 5, 60, 61, 100_000]))
    assert len(set(judged[:3].tolist())) == 1
    assert len(set(judged[3:].tolist())) == 1
    assert judged[0] != judged[3]


@given(st.floats(-1e6, 1e6), st.booleans(), st.integers(0, 20))
def test_any_vector_has_a_p_value_above_0_and_at_most_1(size: float, probe: bool, seed: int) -> None:
    test = a_test(probe=probe)
    x = np.concatenate([size * vectors(8, seed=seed), np.zeros((1, 12)), [test.statistics.mean]]).astype(np.float32)
    judged = test.judge(x, lengths(10, seed))
    assert ((judged > 0) & (judged <= 1)).all()


def test_the_oddest_statistic_decides_and_length_shifts_its_score() -> None:
    c = a_test().combination
    standard = np.array([[2.0, 0.0, 0.0], [-2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 2.0], [2.0, 2.0, -2.0]])
    np.testing.assert_allclose(c.score(standard), 3.0)
    short, long = c(standard, np.full(5, 5)), c(standard, np.full(5, 60))
    np.testing.assert_allclose(short, np.exp(-np.interp(3.0 - 0.4, *c.final_curve)))
    np.testing.assert_allclose(long, np.exp(-np.interp(3.0 + 0.3, *c.final_curve)))


def test_the_farther_from_the_domain_on_either_side_the_smaller_the_p_value() -> None:
    c = a_test().combination
    for sign in (1, -1):
        standard = np.stack([sign * np.linspace(2, 250, 60), np.zeros(60), np.zeros(60)], 1)
        assert (np.diff(c(standard, np.full(60, 10))) < 0).all()


def test_bands_are_judged_together_by_their_mahalanobis_distance() -> None:
    n = a_test().standardization
    raw = np.random.default_rng(0).standard_normal((20, n.location.shape[1]))
    inside = ((raw - n.location[1]) / n.scale[1])[:, 1:-1]
    precision = n.bands_root @ n.bands_root.T
    expected = np.log(np.einsum("ni,ij,nj->n", inside, precision, inside) + FLOOR)
    np.testing.assert_allclose(n(raw, np.full(20, 20))[:, 1], expected)


def test_an_empty_batch_is_judged() -> None:
    judged = a_test().judge(vectors(0), lengths(0))
    assert judged.shape == (0,)


def test_levels_are_asked_for_where_the_test_knows_of_them_and_nowhere_else() -> None:
    with pytest.raises(ValueError, match="levels"):
        a_test(levels=2).judge(vectors(3), lengths(3))
    with pytest.raises(ValueError, match="levels"):
        a_test().judge(vectors(3), lengths(3), np.zeros((3, 1)))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 99))
def test_level_energies_are_log_mean_squares_of_the_levels_channels(sizes: list[int], seed: int) -> None:
    latents = vectors(6, sum(sizes), seed)
    parts = np.split(latents.astype(np.float64), np.cumsum(sizes)[:-1], axis=1)
    expected = np.stack([np.log(np.maximum((part**2).mean(1), FLOOR)) for part in parts], 1)
    np.testing.assert_allclose(level_energies(latents, sizes), expected)
    with pytest.raises(ValueError, match="do not fit"):
        level_energies(latents, [*sizes, 1])


@pytest.mark.parametrize("longest", [0, 999_999])
def test_tables_for_lengths_that_no_text_has_are_refused(longest: int) -> None:
    check_lengths(np.log([2.0, 10_000.0]))
    with pytest.raises(ValueError, match="must increase, and not exceed 32,768 tokens"):
        check_lengths(np.log([2.0, longest or 1.0]))


def test_the_bytes_of_the_tables_that_it_makes_are_known_before() -> None:
    test = a_test()
    tables = (*test.standardization._tables, test.combination._shift)
    assert test.derived == sum(table.nbytes for table in tables) > 1000
