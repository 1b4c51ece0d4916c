"""Converts a threshold on one scale to the equivalent threshold on another scale (equipercentile equating)."""

from dataclasses import dataclass

import numpy as np

from isosim.errors import InvalidInput
from isosim.scoring.reference import COUNTED, TOLERANCE, ReferenceDistribution, clipped

USUAL_RATES = (0.1, 0.05, 0.01, 0.001, 0.0001)  # common false-match rates of thresholds
SUREST = 1 - 1e-12  # largest false-match rate; a rate of 1 has no threshold


@dataclass(frozen=True)
class EquatingResult:
    """A similarity of the old scale, and the similarity of the new scale with the same false-match rate."""

    similarity: float  # on the old scale
    fmr: float  # false-match rate of both similarities
    equivalent: float  # similarity on the new scale
    interval: tuple[float, float]  # 95 % interval of `equivalent`
    extrapolated: bool  # whether at least one scale has too few pairs to count `fmr`


def equate(old: ReferenceDistribution, new: ReferenceDistribution, similarity: float) -> EquatingResult:
    """The similarity on the new scale that has the same false-match rate as `similarity` on the old scale.

    This is equipercentile equating, F_new⁻¹(F_old(similarity)), where F gives the false-match rate of a similarity
    (Braun and Holland, 1982; Kolen and Brennan, 2014, section 2.5). The interval combines the error of the old rate
    with the error of the new threshold as if they were independent. If both scales were made from the same sentences,
    the two errors partly cancel, so the interval is wider than necessary.

    Raises:
        InvalidInput: no threshold of the new scale has nearly the same rate, because scores are tied.
    """
    rate = min(rate_of(old, similarity), SUREST)
    lower, upper = new.reachable(rate)
    if lower < rate / TOLERANCE:
        raise InvalidInput(
            f"similarity: {similarity:g} has a false-match rate of {rate:.3g}, which no threshold of the new version "
            f"reaches, because its calibration text contains repetitions; the next rate that is reached is {upper:.3g}"
        )
    equivalent = new.threshold(rate)
    new_low, new_high = new.interval(rate)
    old_low, old_high = old.interval(rate)
    threshold = old.threshold(rate)
    # `threshold` is an estimate with the interval `old_low` to `old_high`. Suppose that the true threshold is
    # `old_high`, which lies d above `threshold`. Then the true rate at `similarity` is about the estimated rate at
    # `similarity` − d. This rate is higher than `rate`, so it has a lower threshold on the new scale: `lowest`. In the
    # same way, `old_low` leads to `highest`.
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
    """Equivalent thresholds for each of the USUAL_RATES that both scales can reach."""
    reached = [rate for rate in USUAL_RATES if min(old.reachable(rate)[0], new.reachable(rate)[0]) >= rate / TOLERANCE]
    return [equate(old, new, old.threshold(rate)) for rate in reached]


def rate_of(reference: ReferenceDistribution, similarity: float) -> float:
    return float(reference.false_match_rate(np.array([similarity]))[0])
