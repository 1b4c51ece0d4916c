"""Clusters are those of average linkage within what the pairs connect."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from scipy.cluster.hierarchy import fcluster, linkage

from isosim.matching import clusters as module
from isosim.matching.clusters import clusters, components, linked
from isosim.scoring.similarity import normalized
from tests.core.matching.test_candidates import unit


@settings(max_examples=100, deadline=None)
@given(seed=some.integers(0, 2**32), count=some.integers(2, 60), threshold=some.floats(-0.2, 0.9))
def test_linkage_is_scipys(seed: int, count: int, threshold: float) -> None:
    vectors = unit(np.random.default_rng(seed), count).astype(np.float64)
    scores = vectors @ vectors.T
    expected = fcluster(linkage((1 - scores)[np.triu_indices(count, 1)], "average"), 1 - threshold, "distance")
    groups = {tuple(np.flatnonzero(expected == one).tolist()) for one in expected}
    assert {tuple(group.tolist()) for group in linked(scores, threshold)} == groups


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
