"""Finds the most similar pairs of texts by exact search: all scores are computed, in blocks.

Usage: `find(vectors)` for the duplicates of one file, `find(new, known)` for new texts against known ones.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from isosim.arrays import Integers, Rows, Vectors
from isosim.scoring.similarity import cosine

Numbers = npt.NDArray[np.int32]
Scores = npt.NDArray[np.float32]
Part = tuple[Numbers, Numbers, Scores]  # rows, columns and scores of some pairs

# The scores of one pair in two blocks differ by less than half of this (float32). So pairs are selected by a limit
# that is lower by MARGIN, scored again pair by pair, and compared with the limit itself.
MARGIN = 1e-5
ROWS, COLUMNS = 512, 8192  # of a block of scores: 16 MB
STRIPE = 8  # rows of a block that are counted and compared at once, so that they stay in the processor's cache
SPARE = 1_000_000  # pairs that may be gathered beyond twice the wanted number, before the lowest are dropped
RESCORED = 16_384  # pairs whose vectors are gathered at once
BINS = 2048  # of the histogram of scores over −1 … 1; a power of two, see `counted`
ALIKE = np.float32(1 - 1e-6)  # pairs from here on, of texts that the encoder cannot tell apart, are kept beside others
EXCLUDED = np.float32(-2)  # stands in blocks for the pairs of one side that are counted elsewhere


@dataclass(frozen=True)
class Candidates:
    """The most similar pairs, from high to low similarity; equal ones by `left`, then `right`. All arrays: (P,)."""

    left: Numbers  # row of side a; with one side, the lower row of the pair
    right: Numbers  # row of side b
    similarity: Scores
    floor: float  # every compared pair whose similarity is at least this is among the candidates; −1: all pairs
    pairs: int  # number of compared pairs
    histogram: npt.NDArray[np.int64]  # (BINS,) number of compared pairs by similarity, in equal steps from −1 to 1

    def best(self, *, one_file: bool = False) -> Rows:
        """The candidates that are the best one of their left text, from high to low. (C,)

        `one_file`: left and right are rows of the same file; those that are the best one of either of their texts.
        """
        ends = np.stack([self.left, self.right], 1) if one_file else self.left[:, None]
        first = np.unique(ends, return_index=True)[1] // ends.shape[1]
        kept: Rows = np.unique(first).astype(np.intp)
        return kept


def find(
    a: Vectors,
    b: Vectors | None = None,
    *,
    per_text: int = 10,
    most: int = 1_000_000,
    report: Callable[[float], None] = lambda share: None,
) -> Candidates:
    """The pairs with the highest similarities: `per_text` for each row of `a`, `most` at most.

    Without `b`, the pairs within `a`, where each pair counts for both of its texts. The number is that of all texts
    together: a text may have many pairs or none. Pairs of texts that the encoder cannot tell apart come on top.

    Args:
        a, b: vectors of unit length, (N, D) and (M, D); they may be memory-mapped.
        report: is told the share of the pairs that is compared, 0–1.
    """
    rows, columns = len(a), len(a if b is None else b)
    pairs = rows * (rows - 1) // 2 if b is None else rows * columns
    wanted = min(most, -(-per_text * rows // 2) if b is None else per_text * rows)
    best, histogram, compared = Best(wanted, most), np.zeros(BINS, np.int64), 0
    for row, column, block in blocks(a, b, 0, rows):
        for start in range(0, len(block), STRIPE):
            stripe = block[start : start + STRIPE]
            histogram += counted(stripe)
            best.add(row + start, column, stripe)
        best.shrink()
        compared += block.size
        report(min(compared / max(pairs, 1), 1.0))
    later, earlier, _ = best.joined()
    left, right = (earlier, later) if b is None else (later, earlier)
    similarity = rescored(a, a if b is None else b, left, right)
    order = np.lexsort((right, left, -similarity))
    similarity = similarity[order]
    complete = best.limit + MARGIN / 2
    kept = int((similarity >= complete).sum())
    floor, wanted = -1.0, best.budget
    if pairs > wanted:
        # Of equal similarities either all pairs are kept or none.
        if kept > wanted:
            kept = len(similarity) - int(np.searchsorted(similarity[::-1], similarity[wanted], side="right"))
        floor = float(similarity[kept - 1]) if kept else 1 + MARGIN
    chosen = order[:kept]
    return Candidates(left[chosen], right[chosen], similarity[:kept], floor, pairs, histogram)


def pairs_above(unit: Vectors, start: int, stop: int, radius: float) -> Iterator[tuple[Rows, Rows]]:
    """Yields arrays i, j: j is one of the rows start … stop − 1 of `unit` (N, D), i < j, their cosine exceeds `radius`.

    The cosines may differ in the last digits from those of single pairs: search with a lower radius (MARGIN).
    """
    for row, column, block in blocks(unit, None, start, stop):
        at = np.flatnonzero(block > radius)
        yield at % block.shape[1] + column, at // block.shape[1] + row


def blocks(a: Vectors, b: Vectors | None, start: int, stop: int) -> Iterator[tuple[int, int, Scores]]:
    """Yields the first row, the first column and the scores (R, C) of rows start … stop − 1 of `a` with all of `b`.

    Without `b`, of each row with the earlier rows; blocks that reach other pairs have EXCLUDED there. A block is valid
    until the next one.
    """
    space = np.empty(ROWS * COLUMNS, np.float32)
    others = a if b is None else b
    for row in range(start, stop, ROWS):
        end = min(row + ROWS, stop)
        last = end - 1 if b is None else len(others)
        for column in range(0, last, COLUMNS):
            right = min(column + COLUMNS, last)
            block = space[: (end - row) * (right - column)].reshape(end - row, right - column)
            np.matmul(a[row:end], others[column:right].T, out=block)
            if b is None and right > row:
                block[np.arange(column, right) >= np.arange(row, end)[:, None]] = EXCLUDED
            yield row, column, block


def counted(stripe: Scores) -> npt.NDArray[np.int64]:
    """Histogram of scores, without EXCLUDED ones. (R, C) -> (BINS,)

    For x in 2 … 4, the leading bits of the fraction of a float32 are the number of its bin: three times as fast as
    `np.histogram`. Excluded scores come to lie at 1, scores that rounding moved outside of −1 … 1 beside the bins.
    """
    bits = (stripe + np.float32(3)).view(np.int32).ravel()
    bits >>= 23 - (BINS.bit_length() - 1)
    bits -= 127 * BINS  # the bits of 1.0
    counts = np.bincount(bits, minlength=2 * BINS + 1)
    histogram = counts[BINS : 2 * BINS].astype(np.int64)
    histogram[0] += counts[1:BINS].sum()
    histogram[-1] += counts[2 * BINS :].sum()
    return histogram


class Best:
    """Gathers the pairs with the highest scores; the limit that a score must exceed rises while they come in."""

    def __init__(self, wanted: int, most: int) -> None:
        self.wanted, self.most, self.alike = wanted, most, 0  # number of pairs from ALIKE on
        self.limit = -1.5  # all scores are higher, except EXCLUDED
        self._parts: list[Part] = [(np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.float32))]
        self._count = 0

    @property
    def budget(self) -> int:
        return min(self.most, self.wanted + self.alike)

    def add(self, row: int, column: int, stripe: Scores) -> None:
        at = np.flatnonzero(stripe > np.float32(self.limit))
        if len(at):
            rows, columns = np.divmod(at, stripe.shape[1])
            scores = stripe.ravel()[at]
            self._parts.append(((rows + row).astype(np.int32), (columns + column).astype(np.int32), scores))
            self.alike += int((scores >= ALIKE).sum())
            self._count += len(at)

    def joined(self) -> Part:
        """Rows, columns and scores of the gathered pairs. (G,)"""
        rows, columns, scores = zip(*self._parts, strict=True)
        self._parts = [(np.concatenate(rows), np.concatenate(columns), np.concatenate(scores))]
        return self._parts[0]

    def shrink(self) -> None:
        """Drops pairs that are certainly not among the wanted, if there are too many."""
        if self._count <= 2 * self.budget + SPARE:
            return
        rows, columns, scores = self.joined()
        place = max(len(scores) - self.budget, 0)
        lowest = float(np.partition(scores, place)[place]) if self.budget else 1.0
        # If more pairs than that are equal, none of them is kept: `find` promises all pairs above its floor.
        for limit in (lowest - MARGIN, lowest + MARGIN):
            self.limit = max(self.limit, limit)
            kept = scores > np.float32(self.limit)
            if kept.sum() <= 2 * self.budget:
                break
        self._parts = [(rows[kept], columns[kept], scores[kept])]
        self._count = int(kept.sum())


def rescored(a: Vectors, b: Vectors, left: Integers, right: Integers) -> Scores:
    """Cosines of the pairs (left[p], right[p]) of rows of a (N, D) and b (M, D), each computed by itself. (P,)"""
    scores = np.empty(len(left), np.float32)
    for start in range(0, len(left), RESCORED):
        part = slice(start, start + RESCORED)
        scores[part] = cosine(a[left[part]], b[right[part]])
    return scores
