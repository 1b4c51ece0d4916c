"""Candidates are what a comparison of all pairs, one by one, gives."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from isosim.arrays import Vectors
from isosim.matching import candidates
from isosim.matching.candidates import MARGIN, find, pairs_above
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
    assert [found.above(2), found.above(-1)] == [0, 2000]
    assert found.above(float(found.similarity[10])) == 11


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
