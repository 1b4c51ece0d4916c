"""Item normalization as it is asked and stored."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isosim.arrays import Doubles, Vectors
from isosim.scoring.normalization import KINDS, SMALLEST_SPREAD, ItemNormalization
from tests.core.scoring.references import REFERENCE


def unit(vectors: npt.NDArray[np.floating]) -> Vectors:
    unit_vectors: Vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return unit_vectors


def normal(count: int, dim: int, seed: int) -> Vectors:
    return np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)


def cosines(left: Vectors, right: Vectors) -> Doubles:
    return np.asarray((unit(left).astype(np.float64) * unit(right)).sum(1))


@st.composite
def normalizations(draw: st.DrawFn) -> ItemNormalization:
    """Of either kind, any cohort and any number of nearest in it."""
    count, dim = draw(st.integers(1, 40)), draw(st.integers(2, 33))
    cohort = unit(normal(count, dim, draw(st.integers(0, 9))))
    return ItemNormalization(draw(st.sampled_from(KINDS)), cohort, draw(st.integers(1, count)), REFERENCE)


def expected(n: ItemNormalization, left: Vectors, right: Vectors, similarities: Doubles) -> Doubles:
    """The papers' formulae, before tanh: pair by pair and by sorting."""
    scores = []
    for one, other, s in zip(left, right, similarities, strict=True):
        near = [np.sort(n.cohort.astype(np.float64) @ (x / np.linalg.norm(x)))[::-1][: n.nearest] for x in (one, other)]
        if n.kind == "csls":
            scores.append(2 * s - near[0].mean() - near[1].mean())
        else:
            scores.append(np.mean([(s - side.mean()) / max(side.std(), SMALLEST_SPREAD) for side in near]))
    return np.array(scores)


@given(normalizations())
def test_a_score_is_the_papers_squashed(n: ItemNormalization) -> None:
    left, right = normal(20, n.cohort.shape[1], 10), 3 * normal(20, n.cohort.shape[1], 11)
    similarities = cosines(left, right)
    z = expected(n, left, right, similarities)
    found = score(n, left, right, similarities)
    np.testing.assert_allclose(found, np.tanh(z / 4 if n.kind == "as-norm" else z), rtol=0, atol=2e-5)
    assert (np.abs(found) <= 1).all()


@given(normalizations())
def test_the_two_sides_are_alike(n: ItemNormalization) -> None:
    left, right = normal(20, n.cohort.shape[1], 10), normal(20, n.cohort.shape[1], 11)
    similarities = cosines(left, right)
    np.testing.assert_array_equal(score(n, left, right, similarities), score(n, right, left, similarities))


@given(normalizations(), st.integers(1, 20), st.integers(0, 19))
def test_a_score_does_not_depend_on_the_pairs_beside_it(n: ItemNormalization, count: int, first: int) -> None:
    left, right = normal(40, n.cohort.shape[1], 10), normal(40, n.cohort.shape[1], 11)
    similarities = cosines(left, right)
    part = slice(first, first + count)
    alone = score(n, left[part].copy(), right[part].copy(), similarities[part])
    np.testing.assert_array_equal(alone, score(n, left, right, similarities)[part])


def score(n: ItemNormalization, left: Vectors, right: Vectors, similarities: npt.NDArray[np.floating]) -> Doubles:
    rows = np.arange(len(left))
    return n.score(np.concatenate([left, right]), rows, rows + len(left), similarities)


def test_nor_does_it_at_the_size_of_a_real_cohort() -> None:
    n = ItemNormalization("as-norm", unit(normal(256, 384, 0)), 50, REFERENCE)
    left, right = normal(33, 384, 1), normal(33, 384, 2)
    similarities = cosines(left, right)
    alone = [score(n, left[[row]], right[[row]], similarities[[row]])[0] for row in range(33)]
    np.testing.assert_array_equal(alone, score(n, left, right, similarities))


@given(normalizations())
def test_of_the_same_two_sentences_a_higher_similarity_scores_higher(n: ItemNormalization) -> None:
    similarities = np.linspace(-0.05, 0.05, 21)
    left, right = normal(1, n.cohort.shape[1], 10), normal(1, n.cohort.shape[1], 11)
    scores = score(n, left.repeat(21, 0), right.repeat(21, 0), similarities)
    assert (np.diff(scores) >= 0).all()
    if n.kind == "csls" or n.nearest > 10:  # a spread at its floor can take as-norm to where tanh is 1
        assert (np.diff(scores) > 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_at_the_same_similarity_a_hub_scores_lower(kind: str) -> None:
    cohort = unit(np.eye(16) + 0.3)
    n = ItemNormalization(kind, cohort, 8, REFERENCE)
    hub, other, third = np.ones((1, 16), np.float32), normal(1, 16, 1), normal(1, 16, 2)
    same = np.array([0.4])
    assert score(n, hub, other, same) < score(n, third, other, same)


@pytest.mark.parametrize("kind", KINDS)
def test_no_latents_make_a_score_that_is_no_number(kind: str) -> None:
    """Zero latents, and a sentence that is as near to all of its cohort."""
    n = ItemNormalization(kind, unit(np.eye(4)), 4, REFERENCE)
    strange = np.array([[0, 0, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]], np.float32)
    for similarity in (-1.0, 0.0, 1.0):
        scores = score(n, strange, strange[::-1].copy(), np.full(3, similarity))
        assert np.isfinite(scores).all()
        assert (np.abs(scores) <= 1).all()


def test_no_pairs_make_no_scores() -> None:
    n = ItemNormalization("csls", unit(np.eye(4)), 2, REFERENCE)
    assert score(n, np.empty((0, 4), np.float32), np.empty((0, 4), np.float32), np.empty(0)).shape == (0,)


@given(normalizations())
def test_what_is_stored_is_numbers_and_is_what_is_read(n: ItemNormalization) -> None:
    stored = n.arrays()
    assert all(array.dtype.kind in "iuf" for array in stored.values())
    again = ItemNormalization.from_arrays(stored)
    assert (again.kind, again.nearest) == (n.kind, n.nearest)
    np.testing.assert_array_equal(again.cohort, n.cohort)
    assert again.cohort.dtype == np.float32
    for name, array in n.reference.arrays().items():
        np.testing.assert_array_equal(again.reference.arrays()[name], array)


GOOD = ItemNormalization("csls", unit(normal(6, 5, 0)), 3, REFERENCE)


@pytest.mark.parametrize("missing", GOOD.arrays())
def test_a_missing_array_is_an_error(missing: str) -> None:
    stored = GOOD.arrays()
    del stored[missing]
    with pytest.raises(KeyError):
        ItemNormalization.from_arrays(stored)


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("kind", 2, "kind"),
        ("kind", -1, "kind"),
        ("nearest", 0, "nearest"),
        ("nearest", 7, "nearest"),
        ("cohort", np.ones(5), "cohort"),
        ("cohort", np.empty((0, 5)), "cohort"),
        ("cohort", 1.01 * GOOD.cohort, "unit length"),
        ("cohort", np.where(np.eye(6, 5) > 0, np.nan, GOOD.cohort), "unit length"),
        ("reference.similarities", REFERENCE.similarities[::-1], "knots"),
    ],
)
def test_arrays_that_make_no_sense_are_refused(name: str, wrong: npt.ArrayLike, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ItemNormalization.from_arrays(GOOD.arrays() | {name: np.asarray(wrong)})


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="'z-norm'"):
        replace(GOOD, kind="z-norm")
