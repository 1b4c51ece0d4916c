"""Recall and precision at a threshold, and how sure labelled pairs are of them, weighted or not."""

from typing import NamedTuple

import numpy as np
from scipy.stats import gamma

from service.core.arrays import Doubles

TAIL = 0.025  # of a 95 % interval


def recall_at(
    thresholds: Doubles, similarities: Doubles, targets: Doubles, weights: Doubles
) -> tuple[Doubles, Doubles, Doubles]:
    """Share of the matches at or above each threshold (T,), and its 95 % interval.

    Matches found and missed are weighted counts, with intervals of their own (`weighted_count`); the interval of their
    ratio follows from those (MOVER: Donner & Zou, 2012). So heavy pairs without a match widen it: what they stand for
    may hold matches that no draw has met. similarities, targets (0 or 1), weights: (N,).
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
    """95 % interval of the share of matches among the pairs at or above each threshold (T,), around `precisions` (T,).

    From the labels above the threshold alone, as `recall_at` counts them: the curves that chose the threshold are
    smooth, and a bootstrap of them covered the true precision in 25 to 90 of 100 draws where few pairs lie above.
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
    """Matches that some pairs stand for, and its 95 % interval."""

    sum: float
    low: float
    high: float


def weighted_count(targets: Doubles, weights: Doubles, every: Doubles) -> WeightedCount:
    """Sum of the weights of the matches among these pairs, with its interval.

    The interval is a gamma distribution's (Fay & Feuer, 1997), for the sum and half a match more, as heavy as the
    heaviest of these pairs. Theirs is a whole match more; half of one is Jeffreys' choice, and covers 95 % and not
    more. Where no pair is, the heaviest of all labelled ones is taken: `every` (M,). targets, weights: (N,).
    """
    count = float(weights @ targets)
    heaviest = float((weights if len(weights) else every).max())
    mean = count + heaviest / 2
    variance = float(np.square(weights) @ targets) + heaviest**2 / 2
    low, high = (float(gamma.ppf(level, mean**2 / variance, scale=variance / mean)) for level in (TAIL, 1 - TAIL))
    return WeightedCount(count, min(low, count), max(high, count))


def ratio_limit(upper: WeightedCount, lower: WeightedCount) -> float:
    """Upper limit of one count over another (Donner & Zou, 2012, section 3)."""
    if lower.low <= 0:
        return np.inf
    spread = lower.low * (2 * lower.sum - lower.low)
    product = upper.sum * lower.sum
    under_root = product**2 - upper.high * (2 * upper.sum - upper.high) * spread
    return float((product + np.sqrt(max(under_root, 0.0))) / spread)
