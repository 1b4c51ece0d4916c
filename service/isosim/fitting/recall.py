"""Estimates recall and precision at a threshold, with intervals, from labelled pairs with or without weights."""

from typing import NamedTuple

import numpy as np
from scipy.stats import gamma

from isosim.arrays import Doubles

TAIL = 0.025  # probability on each side of a 95 % interval


class AtThresholds(NamedTuple):
    """Recall at T thresholds, and the limits of 95 % intervals of recall and precision. All: (T,)"""

    recalls: Doubles
    recall_low: Doubles
    recall_high: Doubles
    precision_low: Doubles
    precision_high: Doubles


def at_thresholds(
    thresholds: Doubles, similarities: Doubles, targets: Doubles, weights: Doubles, precisions: Doubles
) -> AtThresholds:
    """Recall is the share of matches at or above a threshold, precision the share of matches among the pairs there.

    `weighted_count` gives intervals of the weighted numbers of found and missed matches, and of wrong pairs that reach
    the threshold. The method MOVER (Donner & Zou, 2012) combines two of them into the interval of a share. A pair with
    a large weight represents many pairs of the population. So it widens the interval, whether it is a match or not.

    The interval of a precision counts labels and does not use the curve that gave `precisions` (T,)
    (`probability.bending_line`); it is only widened to contain them. A bootstrap of the curve gives intervals that are
    too narrow. With 600 labels, only 73 % of them contain the true precision for a precision of 0.9, and 60 % for 0.95
    (docs/decisions/scale.md).

    similarities, targets (0 or 1), weights: (N,).
    """
    rows = []
    for threshold, precision in zip(thresholds, precisions, strict=True):
        above = similarities >= threshold
        found, missed = (weighted_count(targets[side], weights[side], weights) for side in (above, ~above))
        wrong = weighted_count(1 - targets[above], weights[above], weights)
        total = found.sum + missed.sum
        recall = found.sum / total if total > 0 else 0.0
        low, high = share_limits(found, missed)
        least, most = share_limits(found, wrong)
        rows.append((recall, min(low, recall), max(high, recall), min(least, precision), max(most, precision)))
    return AtThresholds(*np.array(rows, np.float64).reshape(-1, len(AtThresholds._fields)).T)


def share_limits(part: "WeightedCount", rest: "WeightedCount") -> tuple[float, float]:
    """95 % interval of `part` / (`part` + `rest`)."""
    return 1 / (1 + ratio_limit(rest, part)), 1 - 1 / (1 + ratio_limit(part, rest))


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
