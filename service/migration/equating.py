"""A threshold of one scale as the threshold of another that means the same: equipercentile equating."""

from dataclasses import dataclass

import numpy as np

from service.core.errors import InvalidInput
from service.core.scoring.reference import COUNTED, TOLERANCE, ReferenceDistribution, clipped

USUAL_RATES = (0.1, 0.05, 0.01, 0.001, 0.0001)  # false-match rates people set thresholds for
SUREST = 1 - 1e-12  # rates are held below it: at 1 there is no quantile


@dataclass(frozen=True)
class EquatingResult:
    """A similarity of the old scale, and the one of the new scale with the same false-match rate."""

    similarity: float  # of the old
    fmr: float  # of both
    equivalent: float  # of the new
    interval: tuple[float, float]  # 95 %, of the new
    extrapolated: bool  # beyond what the pairs of the old or the new can count


def equate(old: ReferenceDistribution, new: ReferenceDistribution, similarity: float) -> EquatingResult:
    """F_new⁻¹(F_old(t)): equipercentile equating (Braun and Holland, 1982; Kolen and Brennan, 2014, section 2.5).

    The interval adds both scales' errors as if they were independent: that of the new threshold at the rate, and that
    of the rate, carried over. Two scales made from the same sentences err in the same direction, and then it is wider
    than it need be.

    Raises:
        InvalidInput: scores of the new scale tie, so that none of its thresholds comes near the old one's rate.
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
    # Were the old threshold truly higher, pairs at `similarity` would be more frequent, and the new one lower.
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
    """At the rates that are asked for most, but for those that thresholds of one of the scales do not reach."""
    reached = [rate for rate in USUAL_RATES if min(old.reachable(rate)[0], new.reachable(rate)[0]) >= rate / TOLERANCE]
    return [equate(old, new, old.threshold(rate)) for rate in reached]


def rate_of(reference: ReferenceDistribution, similarity: float) -> float:
    return float(reference.false_match_rate(np.array([similarity]))[0])
