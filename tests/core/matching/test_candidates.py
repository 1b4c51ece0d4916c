"""Candidates, clusters and searches with known answers, beside a comparison of all pairs."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.stats import binom, binomtest

from isosim.arrays import Vectors
from isosim.matching import candidates
from isosim.matching import clusters as module
from isosim.matching.candidates import MARGIN, find, pairs_above
from isosim.matching.check import NONE, Share, answer
from isosim.matching.clusters import clusters, components, linked
from isosim.scoring.similarity import cosine, normalized


def unit(rng: np.random.Generator, rows: int, width: int = 6, *, repeated: bool = False) -> Vectors:
    vectors = normalized(rng.standard_normal((rows, width)).astype(np.float32))
    return vectors[rng.integers(0, rows, rows)] if repeated and rows else vectors


@settings(max_examples=40, deadline=None)
@given(
    seed=some.integers(0, 2**32), rows=some.integers(0, 300), others=some.integers(0, 300) | some.none(),
    per_text=some.integers(1, 12), most=some.sampled_from([0, 7, 100, 10**6]), repeated=some.booleans(),
    spare=some.sampled_from([0, 500, 10**6]), sides=some.tuples(some.integers(30, 200), some.integers(30, 200)),
)  # fmt: skip
def test_candidates_are_the_best_of_all_pairs_down_to_the_floor(
    seed: int, rows: int, others: int | None, per_text: int, most: int, repeated: bool, spare: int,
    sides: tuple[int, int],
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    a = unit(rng, rows, repeated=repeated)
    b = None if others is None else unit(rng, others)
    with pytest.MonkeyPatch.context() as patch:  # blocks and buffers of the sizes of large files
        for name, value in (("SPARE", spare), ("ROWS", sides[0]), ("COLUMNS", sides[1])):
            patch.setattr(candidates, name, value)
        found = find(a, b, per_text=per_text, most=most)
    i, j = np.triu_indices(rows, 1) if b is None else np.indices((rows, len(b))).reshape(2, -1)
    scores = cosine(a[i], (a if b is None else b)[j])
    order = np.lexsort((j, i, -scores))
    kept = len(found.similarity)
    alike = int((scores >= candidates.ALIKE).sum())
    wanted = min(most, (-(-per_text * rows // 2) if b is None else per_text * rows) + alike, len(scores))
    np.testing.assert_array_equal(found.left, i[order][:kept])
    np.testing.assert_array_equal(found.right, j[order][:kept])
    np.testing.assert_array_equal(found.similarity, scores[order][:kept])
    assert kept == (scores >= found.floor).sum() <= wanted
    if kept < wanted:  # only because the next pairs are equal
        assert scores[order][kept] == pytest.approx(scores[order][wanted], abs=3 * MARGIN)
    assert found.pairs == found.histogram.sum() == len(scores)
    for bound in (-0.5, 0.0, 0.25):
        counted = found.histogram[int(1024 * (bound + 1)) :].sum()  # a score at the edge may lie on either side of it
        assert (scores >= bound + MARGIN / 2).sum() <= counted <= (scores >= bound - MARGIN / 2).sum()


def test_scores_at_the_ends_are_counted_in_the_outer_bins() -> None:
    found = find(np.array([[1, 0]], np.float32), np.array([[1, 0], [-1, 0], [1.0000001, 0]], np.float32))
    assert (found.histogram[0], found.histogram[-1], found.floor) == (1, 2, -1)


def test_the_best_candidates_of_each_text() -> None:
    rng = np.random.default_rng(0)
    a, b = unit(rng, 50), unit(rng, 40)
    found = find(a, b, per_text=40)
    best = found.best()
    assert sorted(found.left[best]) == list(range(50)) and (np.diff(best) > 0).all()
    np.testing.assert_array_equal(found.right[best], (a @ b.T).argmax(1)[found.left[best]])


def test_the_best_candidates_of_each_text_of_one_file() -> None:
    a = unit(np.random.default_rng(0), 50)
    found = find(a, per_text=50)
    scores = a @ a.T - 3 * np.eye(50, dtype=np.float32)
    best = found.best(one_file=True)
    pairs = set(zip(found.left[best].tolist(), found.right[best].tolist(), strict=True))
    assert pairs == {(min(i, j), max(i, j)) for i, j in enumerate(scores.argmax(1).tolist())}


def test_progress_rises_to_the_whole() -> None:
    told: list[float] = []
    find(unit(np.random.default_rng(0), 1500), report=told.append)
    assert told == sorted(told) and told[-1] == 1 and len(told) == 3


def test_pairs_above_a_radius_are_found_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "COLUMNS", 100)
    vectors = unit(np.random.default_rng(0), 700)
    scores = vectors @ vectors.T
    for start, stop in ((0, 300), (300, 700)):
        found = [pair for i, j in pairs_above(vectors, start, stop, 0.5) for pair in zip(i, j, strict=True)]
        assert set(found) == {(i, j) for j in range(start, stop) for i in np.flatnonzero(scores[j, :j] > 0.5)}
        assert len(found) == len(set(found)) > 1000


def test_texts_that_the_encoder_cannot_tell_apart_leave_room_for_the_others() -> None:
    rng = np.random.default_rng(3)
    others = unit(rng, 200)
    vectors = np.concatenate([np.repeat(unit(rng, 1), 80, 0), others])
    found, alone = find(vectors), find(others)
    assert int((found.similarity > 0.9999).sum()) == 80 * 79 // 2
    assert len(found.left) >= 80 * 79 // 2 + len(alone.left)
    pairs = {(left - 80, right - 80) for left, right in zip(found.left.tolist(), found.right.tolist(), strict=True)}
    assert pairs >= {*zip(alone.left[:200].tolist(), alone.right[:200].tolist(), strict=True)}
    assert len(find(vectors, most=100).left) == 0  # more of them than fit


@settings(max_examples=100, deadline=None)
@given(seed=some.integers(0, 2**32), count=some.integers(2, 60), threshold=some.floats(-0.2, 0.9))
def test_linkage_is_scipys(seed: int, count: int, threshold: float) -> None:
    vectors = unit(np.random.default_rng(seed), count).astype(np.float64)
    scores = vectors @ vectors.T
    expected = fcluster(linkage((1 - scores)[np.triu_indices(count, 1)], "average"), 1 - threshold, "distance")
    groups = {tuple(np.flatnonzero(expected == one).tolist()) for one in expected}
    assert {tuple(group.tolist()) for group in linked(scores, threshold)} == groups


@settings(max_examples=100, deadline=None)
@given(seed=some.integers(0, 2**32), count=some.integers(3, 40), threshold=some.floats(-0.2, 0.9))
def test_clusters_follow_judgements(seed: int, count: int, threshold: float) -> None:
    """Texts judged different are never together; texts judged the same are, if no judgement contradicts it."""
    rng = np.random.default_rng(seed)
    vectors = unit(rng, count)
    scores = vectors @ vectors.T
    every = np.stack(np.triu_indices(count, 1), 1)
    truth = rng.integers(0, 4, count)  # of which four meanings a text is, so that no judgements contradict each other
    left, right = every[rng.permutation(len(every))[: rng.integers(1, 2 * count)]].T
    labels = (truth[left] == truth[right]).astype(int)
    passes = scores >= threshold
    passes[left, right] = labels == 1
    a, b = np.nonzero(np.triu(passes, 1))
    found = clusters(a, b, scores[a, b], vectors, threshold, (left, right, labels))
    group = np.arange(count) + count
    for number, one in enumerate(found):
        group[one.members] = number
        inner = scores[np.ix_(one.members, one.members)]
        assert one.lowest == pytest.approx(inner.min(), abs=1e-6)
    np.testing.assert_array_equal(group[left[labels == 0]] == group[right[labels == 0]], False)
    np.testing.assert_array_equal(group[left[labels == 1]] == group[right[labels == 1]], True)


def test_a_chain_is_divided_where_its_ends_are_not_similar() -> None:
    angles = np.array([0, 20, 40, 60, 80, 180, 185]) * np.pi / 180
    vectors = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    scores = vectors @ vectors.T
    left, right = np.nonzero(np.triu(scores >= 0.9, 1))
    assert len(np.unique(components(left, right, 7))) == 2  # a chain of five, and a pair
    found = clusters(left, right, scores[left, right], vectors, 0.9)
    assert [one.members.tolist() for one in found] == [[0, 1], [2, 3], [5, 6]]
    for one in clusters(left, right, scores[left, right], vectors, 0.75):
        inner = scores[np.ix_(one.members, one.members)]
        pairs = inner[np.triu_indices(len(inner), 1)]
        assert pairs.mean() >= 0.75 and one.lowest == pytest.approx(pairs.min())
        assert one.central == one.members[inner.sum(1).argmax()]
        assert not one.split


def test_a_component_that_is_too_large_is_split_at_a_higher_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 20)
    rng = np.random.default_rng(0)
    near = unit(rng, 4)[np.repeat(np.arange(4), 15)] + 0.02 * unit(rng, 60)
    vectors = (near / np.linalg.norm(near, axis=1, keepdims=True)).astype(np.float32)
    scores = vectors @ vectors.T
    left, right = np.nonzero(np.triu(scores > -1, 1))  # all are connected
    found = clusters(left, right, scores[left, right], vectors, 0.9)
    assert sorted(one.members.tolist() for one in found) == np.arange(60).reshape(4, 15).tolist()
    assert all(one.split for one in found)


@settings(max_examples=50, deadline=None)
@given(seed=some.integers(0, 2**32), count=some.integers(1, 100), edges=some.integers(0, 120))
def test_components_carry_their_lowest_node(seed: int, count: int, edges: int) -> None:
    a, b = np.random.default_rng(seed).integers(0, count, (2, edges))
    reach = np.eye(count, dtype=bool)
    reach[a, b] = reach[b, a] = True
    for _ in range(7):
        reach = reach @ reach
    np.testing.assert_array_equal(components(a, b, count), reach.argmax(1))


def test_no_pairs_are_no_clusters() -> None:
    none = np.empty(0, np.intp)
    assert clusters(none, none, np.empty(0, np.float32), np.eye(3, dtype=np.float32), 0.5) == []


def test_equal_texts_are_one_cluster_at_the_highest_threshold() -> None:
    """Also from vectors that were stored in float16, whose cosines with themselves are not exactly 1."""
    one = normalized(np.random.default_rng(0).standard_normal((1, 384)).astype(np.float32))
    stored: Any = np.repeat(one, 3, 0).astype(np.float16)
    pairs = np.array([0, 0, 1]), np.array([1, 2, 2]), np.ones(3, np.float32)
    assert [group.members.tolist() for group in clusters(*pairs, stored, 1.0)] == [[0, 1, 2]]


def test_hits_are_right_or_wrong_as_the_truth_says() -> None:
    gallery = np.array([[1, 0], [0, 1], [0, 1]], np.float32)
    queries = np.array([[1, 0], [0.6, 0.8], [0, 1], [0.8, 0.6]], np.float32)
    searches = answer(queries, gallery, np.array([0, 0, 2, NONE]))
    assert searches.best.tolist() == [0, 1, 2, 0]  # of two equal entries the true one
    assert searches.right.tolist() == [True, False, True, False]
    outcome = searches.at(0.8)
    assert (outcome.wrong.count, outcome.wrong.total) == (2, 4)
    assert (outcome.found.count, outcome.found.total) == (2, 3)
    strict = searches.threshold_for(0.25)
    assert strict == pytest.approx(0.8) and strict is not None and searches.at(strict).wrong.count == 0
    assert searches.threshold_for(0.5) == pytest.approx(0.8)
    assert searches.threshold_for(0.0, bound=True) is None


def test_many_searches_are_those_of_a_whole_matrix() -> None:
    rng = np.random.default_rng(0)
    queries, gallery = unit(rng, 600), unit(rng, 9000)
    scores = queries @ gallery.T
    truth = np.where(np.arange(600) % 2, scores.argmax(1), rng.integers(0, 9000, 600))
    searches = answer(queries, gallery, truth)
    np.testing.assert_array_equal(searches.best, scores.argmax(1))
    np.testing.assert_array_equal(searches.right, scores.argmax(1) == truth)
    for rate in (0.01, 0.1):
        for bound in (False, True):
            threshold = searches.threshold_for(rate, bound=bound)
            if threshold is None:
                assert bound
                continue
            wrong = searches.at(threshold).wrong
            assert (wrong.interval[1] if bound else wrong.share or 0) <= rate
            below = searches.similarity[(searches.similarity < threshold) & ~searches.right].max()
            more = searches.at(float(below)).wrong
            assert (more.interval[1] if bound else more.share or 0) > rate
    curve = searches.curve(20)
    assert (np.diff([one.threshold for one in curve]) < 0).all()
    assert (np.diff([one.found.count for one in curve]) >= 0).all() and curve[-1].found.count == searches.right.sum()


@pytest.mark.parametrize("share", [0.01, 0.05, 0.3])
def test_intervals_hold_the_true_share(share: float) -> None:
    counts = np.arange(1001)
    chances = binom.pmf(counts, 1000, share)
    covered = [low <= share <= high for low, high in (Share.of(int(n), 1000, 0.95).interval for n in counts)]
    assert 0.95 <= chances @ covered < 0.99
    assert Share.of(12, 300, 0.95).interval == pytest.approx(tuple(binomtest(12, 300).proportion_ci(0.95)), abs=1e-9)


def test_the_number_of_queries_that_a_width_needs() -> None:
    searches = answer(np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32), np.array([0, NONE]))
    needed = searches.needed(0.01, 0.008)
    for queries, enough in ((needed, True), (needed - 1, False)):
        low, high = Share.of(0, 1, 0.95).interval if not queries else Share.of(queries // 100, queries, 0.95).interval
        assert (high - low <= 0.008) == enough or abs(high - low - 0.008) < 5e-4
    assert Share.of(0, 0, 0.95) == Share(0, 0, None, (0.0, 1.0))
