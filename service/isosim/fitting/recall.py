"""Estimates recall and precision at a threshold, with intervals, from labelled pairs with or without weights."""

from typing import NamedTuple

import numpy as np
from scipy.stats import gamma

from isosim.arrays import Doubles

TAIL = 0.025  # probability on each side of a 95 % interval


def recall_at(
    thresholds: Doubles, similarities: Doubles, targets: Doubles, weights: Doubles
) -> tuple[Doubles, Doubles, Doubles]:
    """Recall at each threshold (T,): the share of matches at or above it. Also the limits of its 95 % interval.

    `weighted_count` gives two intervals: one of the weighted number of found matches, and one of the weighted number of
    missed matches. The method MOVER (Donner & Zou, 2012) combines them into the interval of the recall. A pair with a
    large weight represents many pairs of the population. So it widens the interval, whether it is a match or not.
    similarities, targets (0 or 1), weights: (N,).
    """
    recalls, low, high = (np.zeros(len(thresholds)) for _ in range(3))
    for place, threshold in enumerate(thresholds):
        above = similarities >= threshold
        found, missed = (weighted_count(targets[side], weights[side], weights) for side in (above, ~above))
        total = found.sum + missed.sum
        recalls[place] = found.sum / total if total > 0 else 0.0
        low[place] = 1 / (1 + ratio_limit(missed, found))
        high[place] = 1 - 1 / (1 + ratio_limit(found, missed))
    return recalls, np.minimum(low, recalls), np.maximum(high, recalls)


def precision_interval(
    thresholds: Doubles, similarities: Doubles, targets: Doubles, weights: Doubles, precisions: Doubles
) -> tuple[Doubles, Doubles]:
    """95 % interval of the precision at each threshold (T,), widened to contain `precisions` (T,).

    The precision is the share of matches among the pairs at or above a threshold. `precisions` are the values that a
    smooth curve (`probability.bending_line`) gives for the thresholds. The interval does not use this curve: like
    `recall_at`, it counts the labels at or above the threshold. A bootstrap of the curve gives intervals that are too
    narrow. With 600 labels, only 73 % of them contain the true precision for a precision of 0.9, and 60 % for 0.95
    (docs/decisions/scale.md).

    similarities, targets (0 or 1), weights: (N,).
    """
    low, high = (np.zeros(len(thresholds)) for _ in range(2))
    for place, threshold in enumerate(thresholds):
        above = similarities >= threshold
        right, wrong = (weighted_count(kind[above], weights[above], weights) for kind in (targets, 1 - targets))
        low[place] = 1 / (1 + ratio_limit(wrong, right))
        high[place] = 1 - 1 / (1 + ratio_limit(right, wrong))
    return np.minimum(low, precisions), np.maximum(high, precisions)


class WeightedCount(NamedTuple):
    """Weighted number of matches, and its 95 % interval."""

    sum: float
    low: float
    high: float


def weighted_count(targets: Doubles, weights: Doubles, every: Doubles) -> WeightedCount:
    """Sum of the weights of the matches among these pairs, with its 95 % interval.

    The interval comes from a gamma distribution (Fay & Feuer, 1997). Its mean is the sum plus half the largest weight,
    as in Jeffreys' interval. Then 95 % of the intervals contain the true value. With the whole largest weight, as in
    the paper, the intervals are too wide.

    Args:
        targets: (N,), 0 or 1; weights: (N,) of the same pairs.
        every: (M,) weights of all labelled pairs; the largest weight is taken from these if N is 0.
    """
    count = float(weights @ targets)
    heaviest = float((weights if len(weights) else every).max())
    mean = count + heaviest / 2
    variance = float(np.square(weights) @ targets) + heaviest**2 / 2
    low, high = (float(gamma.ppf(level, mean**2 / variance, scale=variance / mean)) for level in (TAIL, 1 - TAIL))
    return WeightedCount(count, min(low, count), max(high, count))


def ratio_limit(upper: WeightedCount, lower: WeightedCount) -> float:
    """Upper confidence limit of the quotient `upper` / `lower` of two counts (Donner & Zou, 2012, section 3)."""
    if lower.low <= 0:
        return np.inf
    spread = lower.low * (2 * lower.sum - lower.low)
    product = upper.sum * lower.sum
    under_root = product**2 - upper.high * (2 * upper.sum - upper.high) * spread
    return float((product + np.sqrt(max(under_root, 0.0))) / spread)
