"""Counting false hits: the exact share over all subsamples, and the rate among sentences that were not fitted."""

from itertools import combinations

import numpy as np
import pytest

from isosim.errors import InvalidInput
from isosim.fitting import false_hits, reference
from isosim.scoring.advice import Target, advise
from isosim.scoring.calibration import DomainModel
from isosim.scoring.false_hits import FalseHitTable
from isosim.scoring.reference import ReferenceDistribution
from isosim.scoring.similarity import normalized


def vectors(count: int, seed: int, hubs: float = 0.0) -> np.ndarray:
    """Random vectors of 16 dimensions; `hubs`: how much nearer to a common direction a tenth of them lies."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, 16))
    x[: count // 10, 0] += hubs
    return rng.permutation(x).astype(np.float32)


def calibrated(x: np.ndarray) -> tuple[ReferenceDistribution, FalseHitTable]:
    rng = np.random.default_rng(0)
    whole = [(x, np.arange(len(x)))]
    made = reference.build(reference.sample_pairs(whole, rng), rng, intervals=False)
    table = false_hits.build(whole, made, rng)
    assert table is not None
    return made, table


def test_shares_are_those_of_all_subsamples() -> None:
    hits = np.array([[3, 1, 0], [0, 0, 0], [6, 5, 2]], np.float64)  # of 6 entries
    for size, found in zip((1, 2, 4, 6), false_hits.shares(hits, 6, np.array([1, 2, 4, 6])), strict=True):
        counted = [
            np.mean([any(entry < k for entry in chosen) for chosen in combinations(range(6), size)])
            for k in hits.ravel()
        ]
        np.testing.assert_allclose(found, np.reshape(counted, hits.shape).mean(0), atol=1e-12)


@pytest.mark.parametrize("hubs", [0.0, 4.0])
@pytest.mark.parametrize("gallery", [30, 300, 2000])
def test_searches_among_unseen_entries_find_as_many_wrong_matches_as_were_asked_for(hubs: float, gallery: int) -> None:
    made, table = calibrated(vectors(1500, 1, hubs))
    unseen = normalized(vectors(12_000, 2, hubs))
    level = table.level(0.02, gallery)
    queries = unseen[:2000]
    best = np.concatenate([
        (queries[start : start + 500] @ unseen[2000 + shift : 2000 + shift + gallery].T).max(1)
        for shift in range(0, 8000, 2000)
        for start in range(0, 2000, 500)
    ])  # fmt: skip
    share = float((best >= made.threshold(level.rate)).mean())
    assert 0.012 < share < 0.032
    assert level.extrapolated == (gallery > 1499)


def test_a_single_entry_is_a_pair() -> None:
    _, table = calibrated(vectors(2000, 4))
    rates = np.array([1e-2, 1e-3])
    np.testing.assert_allclose(table.share(rates, 1), rates, rtol=0.15)


def test_too_few_sentences_have_no_table() -> None:
    x = vectors(40, 5)
    rng = np.random.default_rng(0)
    made = reference.build(reference.sample_pairs([(x, np.arange(40))], rng), rng, intervals=False)
    tenths = [(x[part], part) for part in np.array_split(np.arange(40), 10)]
    assert false_hits.build(tenths, made, rng) is None


@pytest.mark.parametrize("repeated", [0.05, 0.2])
def test_identical_texts_are_hits_of_each_other_however_strict_the_threshold(repeated: float) -> None:
    """What is told of a tie is what searches among such texts find."""
    x = vectors(1500, 6)
    x[: int(repeated * len(x))] = x[0]
    made, table = calibrated(x)
    unit = normalized(x)
    among = 100
    rng = np.random.default_rng(1)
    found = []
    for _ in range(20):
        order = rng.permutation(len(x))
        best = (unit[order[among:]] @ unit[order[:among]].T).max(1)
        found.append(float((best >= 0.9999).mean()))
    told = float(table.share(np.array([made.smallest_rate]), among)[0])
    assert told == pytest.approx(np.mean(found), rel=0.15)
    within_the_tie = table.hits[:, table.rates < made.smallest_rate]
    assert (within_the_tie[table.galleries >= among] >= 0.8 * repeated).all()
    with pytest.raises(InvalidInput, match="the next reachable rate is 0"):
        advise(DomainModel(made, false_hits=table), "news", Target(false_hit_rate=0.001, gallery=among))
