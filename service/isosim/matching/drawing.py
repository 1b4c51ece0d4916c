"""Which candidates to judge next, so that precision and recall at a target become known from few labels.

Usage: `draw(candidates.similarity, judged, labels, 25, precision=0.9)`, then judge them, and draw again.
"""

import numpy as np
import numpy.typing as npt

from isosim.arrays import Doubles, Floats, Integers, Rows
from isosim.matching.estimate import Bins, logits_of, posterior, sigmoid

DRAWS = 64  # of the curve
EVEN = 0.2  # share of the candidates that are drawn evenly over the range of similarities: they show the curve's shape
PRECISION = 0.9  # target if none is given
LEAST = 1e-200  # instead of a sum or a weight of 0
IN_VAIN = 20  # judged pairs without a match after which the most alike ones are judged first; unmeasured
FEWEST = 100  # candidates that count as passing at least, so that labels show whether the best ones reach a precision


def draw(
    similarity: Floats,
    judged: Integers,
    labels: npt.ArrayLike,
    count: int = 50,
    *,
    precision: float | None = None,
    threshold: float | None = None,
    recall: bool = True,
    seed: int = 0,
) -> Rows:
    """Indices of candidates to judge, in the order of the candidates; fewer than `count` if fewer are left. (C,)

    The chance of a candidate is proportional to what it adds to the variances of the precision and of the recall, if
    strata of equal similarity were sampled (Neyman, 1934), averaged over draws of the curve. So the labels gather on
    both sides of the target's threshold as it becomes known. While IN_VAIN judged pairs or more hold no match, the most
    alike pairs are drawn: in a file with few or no matches, they tell soonest.

    Args:
        similarity: (P,) of all candidates, from high to low.
        judged, labels: (N,) indices of the judged candidates, and their labels, 0 or 1; at first none.
        precision, threshold: the target; give one of them.
        recall: False: only the precision matters.
    """
    rng = np.random.default_rng(seed)
    rows = np.asarray(judged, np.intp)
    bins = Bins(similarity)
    left = np.ones(len(similarity), np.bool_)
    left[rows] = False
    rest = np.flatnonzero(left)
    if len(rest) <= count or (len(rows) >= IN_VAIN and not np.any(labels)):
        return rest[:count]
    right, wrong = bins.counts(rows, labels)
    chances = sigmoid(logits_of(bins.parts, posterior(bins, right, wrong, rng, DRAWS)))  # (DRAWS, B)
    sums = np.cumsum(chances * bins.sizes, 1)
    if threshold is None:
        reached = sums / bins.edges[1:] >= (PRECISION if precision is None else precision)
        last = np.where(reached.any(1), len(bins.sizes) - 1 - reached[:, ::-1].argmax(1), 0)  # group that still passes
    else:
        passing = len(similarity) - int(np.searchsorted(similarity[::-1], np.float32(threshold)))
        last = np.full(DRAWS, int(np.searchsorted(bins.edges, passing)) - 1)
    last = np.maximum(last, int(np.searchsorted(bins.edges, min(FEWEST, len(similarity)))) - 1)
    above = np.arange(len(bins.sizes)) <= last[:, None]
    share_above = np.take_along_axis(sums, last[:, None], 1) / np.maximum(sums[:, -1:], LEAST)
    spread = np.sqrt(chances * (1 - chances))
    free = bins.sizes - right - wrong
    half = (1 - EVEN) / 2
    even = np.diff(bins.parts.sum(1), prepend=bins.parts[0].sum()) / -bins.sizes
    density = sum(
        share * (one / np.maximum((one * free).sum(1, keepdims=True), LEAST)).mean(0)
        for share, one in (
            (EVEN, np.maximum(even, 0)[None]),
            (half if recall else 2 * half, spread * above),
            (half * recall, spread * np.where(above, 1 - share_above, share_above)),
        )
    )
    chosen: Rows = rest[systematic(np.repeat(density, bins.sizes)[rest], count, rng)]
    return chosen


def systematic(weights: Doubles, count: int, rng: np.random.Generator) -> Rows:
    """Draws `count` of N rows with chances in proportion to their weights, spread over the rows' order. (N,) -> (C,)

    Chances above 1 are cut to 1, and the others raised (Särndal, Swensson & Wretman, 1992, section 3.6.2).
    """
    weights = np.maximum(weights, max(weights.max() * 1e-9, LEAST))
    certain = np.zeros(len(weights), np.bool_)
    while True:
        chances = np.where(certain, 1.0, (count - certain.sum()) * weights / weights[~certain].sum())
        over = (chances > 1 + 1e-9) & ~certain
        if not over.any():
            break
        certain |= over
    sums = np.cumsum(chances)
    places = (rng.random() + np.arange(count)) * (sums[-1] / count)
    drawn: Rows = np.minimum(np.searchsorted(sums, places, side="right"), len(weights) - 1)
    return drawn
