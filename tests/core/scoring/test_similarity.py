"""Cosines and what a calibration makes of them; distances of databases; flags of a pair."""

import weakref
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from isosim.arrays import Doubles, Vectors
from isosim.encoders.texts import PooledVector
from isosim.errors import InvalidInput
from isosim.scoring.calibration import Calibration, DomainModel
from isosim.scoring.distances import Metric, Space, check_metric, cosines_of, distance_of, space_of
from isosim.scoring.pair_features import PairFeatures, pair_features, words
from isosim.scoring.similarity import cosine, flags_of, normalized, score
from tests.core.scoring.references import MAP, REFERENCE, a_test

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


@pytest.mark.parametrize("dim", [2, 8, 30, 384, 768, 1024])
def test_the_bits_of_a_score_do_not_depend_on_its_batch(dim: int) -> None:
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
    assert (found.percentile, found.probability, found.oddness) == (None, None, None)


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

    def judge(self, pooled: Vectors, tokens: npt.NDArray[np.intp], levels: object) -> Doubles:
        self.asked += 1
        return np.full(len(pooled), self.p_value)


def test_a_remembered_judgement_does_not_keep_its_test_in_memory() -> None:
    """A cache holds many texts, each judged by another domain: tests of domains that were dropped must go."""
    texts = [PooledVector(vector, 5, False) for vector in POOLED]
    test = a_test(8)
    gone = weakref.ref(test)
    calibration(model=DomainModel(domain_test=test)).judge(texts, POOLED, POOLED)  # keeps its whitening in double, too
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
        assert set(found) == {test.p_value}
    assert (one.asked, other.asked) == (2, 1)


@pytest.mark.parametrize("metric", get_args(Metric))
def test_a_distance_gives_back_its_cosine(metric: Any) -> None:
    cosines = np.linspace(-1, 1, 201)
    distances = np.array([distance_of(float(cosine), metric) for cosine in cosines])
    assert np.allclose(cosines_of(distances, metric, "distances"), cosines, atol=1e-12)


def test_distances_are_those_of_unit_vectors() -> None:
    rng = np.random.default_rng(0)
    a, b = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in rng.normal(size=(2, 50, 9)))
    cosines = (a * b).sum(1)
    measured = {
        "cosine_distance": 1 - cosines,
        "l2": np.linalg.norm(a - b, axis=1),
        "l2_squared": ((a - b) ** 2).sum(1),
        "inner_product": (a * b).sum(1),
    }
    for metric, values in measured.items():
        assert np.allclose(cosines_of(values, metric, "distances"), cosines, atol=1e-12), metric  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("metric", "values", "message"),
    [
        (None, [0.5, 1.01], r"cosines\[1\] is 1\.01; cosines lie in -1 to 1"),
        (None, [float("nan")], r"cosines\[0\] is nan"),
        ("l2", [0.1, -0.1], r"cosines\[1\] is -0\.1; this is not a possible value of l2"),
        ("l2", [1e300], r"cosines\[0\] is 1e\+300"),
        ("l2_squared", [4.01], "4.01"),
        ("cosine_distance", [2.2], "2.2"),
        ("inner_product", [float("-inf")], "-inf"),
    ],
)
def test_what_stands_for_no_cosine_is_named(metric: Any, values: list[float], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        cosines_of(np.array(values), metric, "cosines")


def test_rounding_of_databases_is_taken() -> None:
    assert cosines_of(np.array([1.0000002, -1.0005]), None, "cosines").tolist() == [1.0, -1.0]
    assert cosines_of(np.array([-1e-7]), "l2_squared", "distances").tolist() == [1.0]


def test_a_domain_that_transforms_vectors_asks_which_ones_are_meant() -> None:
    assert space_of(None, "unit=l2", "news", identity=True) == "calibrated"
    assert [space_of(space, "unit=l2", "news", identity=False) for space in get_args(Space)] == list(get_args(Space))
    with pytest.raises(InvalidInput, match=r"calibrated if your index holds vectors of isosim/news, or raw"):
        space_of(None, "unit=l2", "news", identity=False)


def test_only_vectors_of_one_length_have_other_distances_than_the_cosines() -> None:
    check_metric("cosine_distance", "ours", unit=False)
    check_metric("l2", "ours", unit=True)
    with pytest.raises(InvalidInput, match="l2 determines a cosine only if all vectors have length 1"):
        check_metric("l2", "ours", unit=False)


NUMBERS = [
    # seen
    ("Windows 10", "Windows 11", True),
    ("3.5 kg", "35 kg", True),
    ("from 9 to 5", "from 9 to 6", True),
    ("on 31.10.2024", "on 30.10.2024", True),
    ("غرفة ٢٥", "غرفة ٢٦", True),
    ("कमरा १२", "कमरा 21", True),
    ("１２号室", "13号室", True),
    ("12개월", "24개월", True),
    ("9" * 5000 + "1", "9" * 5000 + "2", True),
    # equal
    ("1,000 users", "1000 users", False),
    ("1.000 Euro", "1000 Euro", False),
    ("3.50", "3,5", False),
    ("007", "7", False),
    ("غرفة ٢٥", "room 25", False),
    ("١٬٠٠٠٫٥", "1000.5", False),
    # one text says more than the other
    ("Windows 10", "Windows", False),
    ("iPhone 6 or 7", "iPhone 7", False),
    # not seen: number words, and numbers with a unit of their size
    ("two men", "three men", False),
    ("first", "second", False),
    ("10k", "10,000", True),
]
NEGATIONS = [
    # seen
    ("It is safe.", "It is not safe.", True),
    ("It is safe.", "It isn't safe.", True),
    ("It is safe.", "It ISN’T safe.", True),
    ("it is safe", "it isnt safe", True),
    ("You can go", "You cannot go", True),
    ("mit Strom", "ohne Strom", True),
    ("Es gibt Kuchen", "Es gibt keinen Kuchen", True),
    ("Это правда", "Это не правда", True),
    ("هو هنا", "هو ليس هنا", True),
    ("यह सही है", "यह सही नहीं है", True),
    ("학교에 갔다", "학교에 안 갔다", True),
    ("물이 있다", "물이 있다 없다", True),
    # both negated, or none
    ("It is not safe.", "It isn't safe.", False),
    ("No way", "No way at all", False),
    # other words: a paraphrase
    ("Why is he still here?", "Why has he not left yet?", False),
    # not seen: parts of words, inflected words, and other languages
    ("It is safe.", "It is unsafe.", False),
    ("He likes it.", "He does not like it.", False),
    ("C'est sûr", "Ce n'est pas sûr", False),
    ("我去", "我不去", False),
    # nothing but a negation
    ("no", "yes", False),
    ("not", "", False),
]


@pytest.mark.parametrize(("a", "b", "differ"), NUMBERS)
def test_numbers_differ_if_each_text_has_one_that_the_other_lacks(a: str, b: str, *, differ: bool) -> None:
    assert PairFeatures.of(a, b).numbers_differ == PairFeatures.of(b, a).numbers_differ == differ


@pytest.mark.parametrize(("a", "b", "differs"), NEGATIONS)
def test_negation_differs_if_one_of_two_nearly_equal_texts_is_negated(a: str, b: str, *, differs: bool) -> None:
    assert PairFeatures.of(a, b).negation_differs == PairFeatures.of(b, a).negation_differs == differs


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A red-brick house, 5 m.", ["a", "red", "brick", "house", "5", "m"]),
        ("Ein Café «neu»", ["ein", "café", "neu"]),
        ("Cafe\u0301", ["café"]),  # composed and decomposed letters are equal
        ("मैं नहीं", ["मैं", "नहीं"]),  # vowel signs belong to their letters
        ("赤い car。", ["赤", "い", "car"]),
        ("", []),
    ],
)
def test_words(text: str, found: list[str]) -> None:
    assert words(text) == found


def test_shared_words_and_their_order() -> None:
    table = pair_features([("the dog bit the man", "the man bit the dog"), ("a b", "c d"), ("a", "a"), ("!", "?")])
    assert table.tolist() == [[1, 3 / 5, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
