"""Cosines and what a calibration makes of them."""

import weakref
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from isosim.arrays import Vectors
from isosim.encoders.texts import PooledVector
from isosim.scoring.calibration import Calibration, DomainModel
from isosim.scoring.out_of_domain import DomainTest, Judgement
from isosim.scoring.similarity import cosine, flags_of, normalized, score
from tests.core.scoring.references import MAP, REFERENCE
from tests.modelling.calibration.domains import fitted

finite = st.floats(-1000, 1000, width=32)
shapes = st.tuples(st.integers(1, 8), st.integers(1, 40))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Vectors, Vectors]:
    shape = draw(shapes)
    return draw(arrays(np.float32, shape, elements=finite)), draw(arrays(np.float32, shape, elements=finite))


@given(pairs())
def test_a_cosine_is_symmetric_and_between_minus_1_and_1(pair: tuple[Vectors, Vectors]) -> None:
    a, b = pair
    scores = cosine(a, b)
    assert scores.tobytes() == cosine(b, a).tobytes()
    assert (np.abs(scores) <= 1).all()
    assert scores.dtype == np.float32


@given(pairs(), st.floats(2.0**-10, 2.0**10, width=32))
def test_a_vectors_length_does_not_enter_its_cosine(pair: tuple[Vectors, Vectors], factor: float) -> None:
    a, b = (np.where(np.abs(x) < 1e-6, 0, x).astype(np.float32) for x in pair)  # smaller ones lose bits when scaled
    np.testing.assert_allclose(cosine(a * np.float32(factor), b), cosine(a, b), rtol=1e-5, atol=1e-6)


@given(pairs(), st.data())
def test_a_pairs_score_has_the_same_bits_whatever_pairs_stand_beside_it(
    pair: tuple[Vectors, Vectors], data: st.DataObject
) -> None:
    a, b = pair
    together = cosine(a, b)
    rows = data.draw(st.lists(st.integers(0, len(a) - 1), min_size=1, max_size=20))
    assert cosine(a[rows], b[rows]).tobytes() == together[rows].tobytes()
    assert all(cosine(a[i : i + 1], b[i : i + 1]).tobytes() == together[i : i + 1].tobytes() for i in range(len(a)))


@pytest.mark.parametrize("dim", [8, 30, 384, 768, 1024])
def test_at_real_sizes_too_the_bits_of_a_score_do_not_depend_on_its_batch(dim: int) -> None:
    u, v = (np.random.default_rng(seed).standard_normal((512, dim // 2)).astype(np.float32) for seed in range(2))
    a, b = np.hstack([u, v]), np.hstack([v, -u])  # orthogonal: what is left is the order of summation
    together = cosine(a, b)
    for i in range(0, 512, 7):
        assert cosine(a[i : i + 1], b[i : i + 1]).tobytes() == together[i : i + 1].tobytes()


def test_a_cosine_is_the_cosine() -> None:
    a = np.array([[1, 0], [1, 1], [1, 2], [3, 4]], np.float32)
    b = np.array([[0, 1], [2, 2], [-1, -2], [4, 3]], np.float32)
    np.testing.assert_allclose(cosine(a, b), [0, 1, -1, 24 / 25], atol=1e-7)


def test_a_zero_vector_is_similar_to_nothing() -> None:
    zero, one = np.zeros((1, 4), np.float32), np.ones((1, 4), np.float32)
    assert cosine(zero, one) == cosine(one, zero) == cosine(zero, zero) == 0


@given(pairs())
def test_normalized_rows_have_unit_length_and_the_old_direction(pair: tuple[Vectors, Vectors]) -> None:
    rows = np.where(np.abs(pair[0]) < 1e-6, 0, pair[0]).astype(np.float32)
    unit = normalized(rows)
    zero = ~rows.any(1)
    np.testing.assert_allclose(np.linalg.norm(unit[~zero], axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(cosine(unit, rows)[~zero], 1, rtol=1e-5)
    assert not unit[zero].any()


def calibration(**parts: object) -> Calibration:
    return Calibration("d", 1, "flow", "digest", **parts)  # type: ignore[arg-type]


POOLED = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)
LEFT, RIGHT = np.array([0, 1, 4]), np.array([2, 1, 0])
TEXTS = [PooledVector(vector, tokens, False) for vector, tokens in zip(POOLED, (5, 7, 9, 5, 30), strict=True)]


def test_without_a_calibrator_similarity_is_the_cosine_bit_by_bit() -> None:
    found = score(calibration(), TEXTS, POOLED, LEFT, RIGHT)
    assert found.similarity.tobytes() == found.cosine.tobytes() == cosine(POOLED[LEFT], POOLED[RIGHT]).tobytes()
    assert (found.percentile, found.probability, found.verdicts) == (None, None, None)


def test_a_calibration_moves_similarity_and_percentile_and_leaves_the_cosine() -> None:
    seen: list[npt.NDArray[np.float32]] = []

    def transform(x: Vectors) -> Vectors:
        seen.append(x)
        return x + np.float32(1)

    found = score(calibration(transform=transform, model=DomainModel(REFERENCE)), TEXTS, POOLED, LEFT, RIGHT)
    assert found.cosine.tobytes() == cosine(POOLED[LEFT], POOLED[RIGHT]).tobytes()
    np.testing.assert_array_equal(found.similarity, cosine(POOLED[LEFT] + 1, POOLED[RIGHT] + 1))
    np.testing.assert_array_equal(found.percentile, REFERENCE.percentile(found.similarity))
    assert [len(x) for x in seen] == [5]  # each vector once, however many pairs it is in


class CountingTest:
    """A domain test that says how often it was asked."""

    def __init__(self, p_value: float) -> None:
        self.p_value, self.asked, self.identity = p_value, 0, object()

    def judge(self, pooled: Vectors, tokens: npt.NDArray[np.intp], levels: object) -> Judgement:
        self.asked += 1
        return Judgement(np.full(len(pooled), self.p_value), np.zeros(len(pooled)))

    judge_texts = DomainTest.judge_texts


def test_a_remembered_judgement_does_not_keep_its_test_in_memory() -> None:
    """A cache holds many texts, each judged by another domain: tests of domains that were dropped must go."""
    texts = [PooledVector(vector, 5, False) for vector in POOLED]
    test = fitted(1000, 8)
    gone = weakref.ref(test)
    test.judge_texts(texts, POOLED)  # which keeps its whitening in double precision, too
    del test
    assert gone() is None
    assert all(text.verdict is not None for text in texts)


def test_a_pair_with_a_text_without_a_known_token_has_percentile_and_probability_0() -> None:
    blind = [replace(text, unreadable=row == 1) for row, text in enumerate(TEXTS)]
    model = DomainModel(REFERENCE, probability=MAP)
    plain, found = (score(calibration(model=model), texts, POOLED, LEFT, RIGHT) for texts in (TEXTS, blind))
    assert plain.unreadable is None
    assert found.unreadable is not None
    assert found.unreadable.tolist() == [False, True, False]
    for column in ("percentile", "probability"):
        expected = np.where(found.unreadable, 0.0, getattr(plain, column))
        np.testing.assert_array_equal(getattr(found, column), expected)
    assert found.similarity.tobytes() == plain.similarity.tobytes()


def test_two_different_texts_with_equal_unknown_tokens_are_an_unreadable_pair() -> None:
    texts = [replace(text, unknown_hash=number) for text, number in zip(TEXTS, (7, 7, 8, 0, 0), strict=True)]
    left, right = np.array([0, 0, 0, 3]), np.array([1, 0, 2, 4])  # equal tokens; one text; other tokens; none unknown
    found = score(calibration(model=DomainModel(REFERENCE, probability=MAP)), texts, POOLED, left, right)
    assert found.unreadable is not None
    assert found.unreadable.tolist() == [True, False, False, False]
    assert found.percentile is not None and found.probability is not None
    assert (found.percentile[0], found.probability[0]) == (0, 0)
    assert (found.percentile[1:] > 0).all()
    assert flags_of(texts, found, left, right) == ([["unreadable"], [], [], []], [["unreadable"], [], [], []])


def test_a_texts_judgement_is_remembered_for_the_test_that_made_it_and_for_no_other() -> None:
    texts = [PooledVector(vector, 5, False) for vector in POOLED]
    one, other = CountingTest(0.25), CountingTest(0.5)
    for test in (one, one, other, one):
        model = DomainModel(domain_test=test)  # type: ignore[arg-type]
        found = calibration(model=model).judge(texts, POOLED, POOLED)
        assert found is not None
        assert {verdict.p_value for verdict in found} == {test.p_value}
    assert (one.asked, other.asked) == (2, 1)
