"""Converts a threshold of one scale to the equivalent threshold of another: equipercentile equating."""

from dataclasses import dataclass

import numpy as np

from service.core.errors import InvalidInput
from service.core.scoring.reference import COUNTED, TOLERANCE, ReferenceDistribution, clipped

USUAL_RATES = (0.1, 0.05, 0.01, 0.001, 0.0001)  # common false-match rates of thresholds
SUREST = 1 - 1e-12  # largest rate: at 1 there is no quantile


@dataclass(frozen=True)
class EquatingResult:
    """A similarity of the old scale, and that of the new scale with the same false-match rate."""

    similarity: float  # of the old
    fmr: float  # of both
    equivalent: float  # of the new
    interval: tuple[float, float]  # 95 %, of the new
    extrapolated: bool  # the rate is too extreme to count in the old or the new scale's pairs


def equate(old: ReferenceDistribution, new: ReferenceDistribution, similarity: float) -> EquatingResult:
    """F_new⁻¹(F_old(t)): equipercentile equating (Braun and Holland, 1982; Kolen and Brennan, 2014, section 2.5).

    The interval combines the error of the new threshold with that of the old rate, assuming independence. For scales
    made from the same sentences, whose errors are correlated, it is wider than necessary.

    Raises:
        InvalidInput: because of tied scores, no threshold of the new scale comes near the old one's rate.
    """
    rate = min(rate_of(old, similarity), SUREST)
    lower, upper = new.reachable(rate)
    if lower < rate / TOLERANCE:
        raise InvalidInput(
            f"similarity: {similarity:g} has a false-match rate of {rate:.3g}, which no threshold of the new version "
            f"reaches, because texts repeat in what it was made from; the next one that is reached is {upper:.3g}"
        )
    equivalent = new.threshold(rate)
    new_low, new_high = new.interval(rate)
    old_low, old_high = old.interval(rate)
    threshold = old.threshold(rate)
    # If the true old threshold is higher, the true rate at `similarity` is higher, and the new threshold lower.
    lowest = new.threshold(min(rate_of(old, similarity - (old_high - threshold)), SUREST))
    highest = new.threshold(min(rate_of(old, similarity + (threshold - old_low)), SUREST))
    below = float(np.hypot(equivalent - new_low, equivalent - lowest))
    above = float(np.hypot(new_high - equivalent, highest - equivalent))
    return EquatingResult(
        similarity,
        rate,
        equivalent,
        (clipped(equivalent - below), clipped(equivalent + above)),
        min(rate, 1 - rate) < COUNTED / min(old.pairs, new.pairs),
    )


def table(old: ReferenceDistribution, new: ReferenceDistribution) -> list[EquatingResult]:
    """Equivalent thresholds at USUAL_RATES, without rates that either scale cannot reach."""
    reached = [rate for rate in USUAL_RATES if min(old.reachable(rate)[0], new.reachable(rate)[0]) >= rate / TOLERANCE]
    return [equate(old, new, old.threshold(rate)) for rate in reached]


def rate_of(reference: ReferenceDistribution, similarity: float) -> float:
    return float(reference.false_match_rate(np.array([similarity]))[0])
