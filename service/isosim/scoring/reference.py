"""Distribution of the similarities of random pairs in a domain: the scale that gives a score its meaning."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property

import numpy as np
import numpy.typing as npt

from isosim.arrays import Doubles, Floats

Z_MAX = 1 - 1e-7  # similarities are clipped to ± this before Fisher's z
SMALLEST_RATE = 1e-12
ROUNDING = 1e-6  # scores this close count as equal: cosines of identical texts differ by about 1e-7
COUNTED = 10  # if fewer than 10 pairs reach a score, its false-match rate is extrapolated instead of counted
# Ties can make a requested rate impossible. The next lower possible rate is then used if it is at least the requested
# rate / TOLERANCE. Example: 0.008 can be used for 0.01.
TOLERANCE = 1.25


def fisher_z(similarity: Floats | float) -> Doubles:
    """Fisher's z: atanh(similarity), an unbounded scale on which the tail is fitted (Fisher, 1915).

    >>> fisher_z(np.array([0.0, 0.5, 0.99])).round(3)
    array([0.   , 0.549, 2.647])
    """
    z: Doubles = np.arctanh(np.minimum(np.maximum(np.asarray(similarity, np.float64), -Z_MAX), Z_MAX))
    return z


def clipped(similarity: float) -> float:
    """The similarity, clipped to the range of a cosine, −1 to 1."""
    return min(max(similarity, -1.0), 1.0)


@dataclass(frozen=True)
class ReferenceDistribution:
    """False-match rate of random sentence pairs: quantile knots, and a generalized Pareto tail above the last knot.

    The tail is fitted to exceedances of Fisher's z (Coles, 2001, section 4.2). A tail fitted to the cosine itself gave
    near-duplicates a false-match rate of zero in some domains.

    If texts have the same vector, many pairs can have the same similarity. This is a tie, and the rate drops there. Two
    knots store the drop, one just below the tie and one just above it. If similarity 1 is a tie, there is no tail.
    """

    similarities: Doubles  # (K,) knots, rising
    logits: Doubles  # (K,) logit of the false-match rate at the knots, falling
    shape: float  # ξ of the tail
    scale: float  # σ of the tail, in units of z
    # largest |ln(fitted rate / counted rate)| of the tail, at similarities that at least 30 pairs reach
    tail_error: float
    levels: Doubles  # (L,) false-match rates for which the bootstrap gave intervals, falling
    low: Doubles  # (L,) 95 % interval of the threshold at each level
    high: Doubles  # (L,)
    relative_error: Doubles  # (L,) relative standard error of the rate at each level; NaN for levels below 10 / pairs
    sentences: int
    pairs: int
    tied: Doubles = field(default_factory=lambda: np.empty(0))  # (T,) similarities at which pairs tie, rising
    tied_rates: Doubles = field(default_factory=lambda: np.empty(0))  # (T,) share of random pairs in each tie

    @cached_property
    def join(self) -> float:
        """The similarity at which the tail begins."""
        return float(self.similarities[-1])

    @cached_property
    def _join_z(self) -> float:
        return float(fisher_z(self.join))

    @cached_property
    def _evidence(self) -> Doubles:
        """(K,) −logits."""
        return -self.logits

    @cached_property
    def join_rate(self) -> float:
        return float(1 / (1 + np.exp(-self.logits[-1])))

    def false_match_rate(self, similarities: Floats) -> Doubles:
        """Share of random pairs that score at least this much; strictly falling, never 0. (N,) -> (N,)"""
        x = np.asarray(similarities, np.float64)
        above = x > self.join
        count = np.count_nonzero(above)
        rate: Doubles
        if count == len(x):
            rate = self._tail(x)
        else:
            rate = 1 / (1 + np.exp(np.interp(x, self.similarities, self._evidence)))
            if count:
                rate[above] = self._tail(x[above])
        return np.maximum(rate, SMALLEST_RATE)

    def _tail(self, similarities: Doubles) -> Doubles:
        excess = fisher_z(similarities) - self._join_z
        return self.join_rate * exceedance(excess, self.shape, self.scale)

    def percentile(self, similarities: Floats) -> Doubles:
        """Share of random pairs that score lower, 0–1."""
        return 1.0 - self.false_match_rate(similarities)

    def threshold(self, rate: float) -> float:
        """The similarity with this false-match rate, for a rate in (0, 1)."""
        if rate >= self.join_rate:
            return clipped(float(np.interp(-np.log(rate / (1 - rate)), -self.logits, self.similarities)))
        share = rate / self.join_rate
        excess = -self.scale * np.log(share) if self.shape == 0 else self.scale / self.shape * (share**-self.shape - 1)
        return clipped(float(np.tanh(float(fisher_z(self.join)) + excess)))

    @cached_property
    def gaps(self) -> Doubles:
        """For each tie, the rates of two thresholds: just above the tie's similarity, and at this similarity. (T, 2)

        No threshold has a rate between these two rates.
        """
        at = self.false_match_rate(self.tied - ROUNDING)
        return np.column_stack([np.maximum(at - self.tied_rates, 0.0), at])

    @property
    def smallest_rate(self) -> float:
        """The smallest false-match rate that some threshold reaches; 0.0 if thresholds reach any rate.

        It is the rate at the highest tie, if fewer than COUNTED pairs score above this tie.
        """
        return float(self.gaps[-1, 1]) if len(self.tied) and self.gaps[-1, 0] < COUNTED / self.pairs else 0.0

    def reachable(self, rate: float) -> tuple[float, float]:
        """Returns (rate, rate) if a threshold can have this rate, otherwise the nearest possible rates below and above.

        If `rate` is less than `smallest_rate`, returns (0, `smallest_rate`).
        """
        if rate < self.smallest_rate:
            return 0.0, self.smallest_rate
        inside = [(float(low), float(high)) for low, high in self.gaps if low < rate < high]
        return inside[0] if inside else (rate, rate)

    def extrapolated(self, rates: Doubles) -> npt.NDArray[np.bool_]:
        """Whether each rate is too near to 0 or 1 to be counted in the sample. (N,) -> (N,)"""
        beyond: npt.NDArray[np.bool_] = np.minimum(rates, 1.0 - rates) < COUNTED / self.pairs
        return beyond

    def interval(self, rate: float) -> tuple[float, float]:
        """95 % interval of the threshold for a rate.

        The bootstrap gave intervals for the rates in `levels`. Each interval has two distances: from the threshold to
        its lower end, and to its upper end. Between two levels, these distances are interpolated in the logarithm of
        the rate. Outside the levels, the distances at the nearest level are used.
        """
        centres = np.array([self.threshold(float(level)) for level in self.levels])
        at, x = np.log(rate), np.log(self.levels[::-1])
        below = float(np.interp(at, x, (centres - self.low)[::-1]))
        above = float(np.interp(at, x, (self.high - centres)[::-1]))
        threshold = self.threshold(rate)
        return clipped(threshold - below), clipped(threshold + above)

    def curve(self) -> dict[str, list[float]]:
        """Points of the curve for a plot: the knots, and some of the tail, down to a rate of 1 % of `join_rate`."""
        tail = np.empty(0) if self.join >= 1 else self.join_rate * np.logspace(-0.25, -2, 8)
        rates = [*(1 / (1 + np.exp(-self.logits[1:]))), *tail]
        return {"similarity": [round(self.threshold(float(r)), 5) for r in rates], "rate": [float(r) for r in rates]}

    @property
    def resolution(self) -> float:
        """The smallest false-match rate that the data support.

        This is the largest of these rates:

        - COUNTED / `pairs`: for example, 0.001 with 10,000 pairs
        - each level with a relative error of 0.5 or more, or NaN
        - `smallest_rate`
        """
        unsure = self.levels[~(self.relative_error < 0.5)]
        return max(COUNTED / self.pairs, float(unsure.max()) if len(unsure) else 0.0, self.smallest_rate)

    def arrays(self) -> dict[str, Doubles]:
        """The fields as arrays, for storage; `from_arrays` is the inverse. Ties are stored only if there are any."""
        arrays = {f.name: np.asarray(getattr(self, f.name), np.float64) for f in fields(self)}
        return {name: array for name, array in arrays.items() if len(self.tied) or not name.startswith("tied")}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Doubles]) -> "ReferenceDistribution":
        """Raises KeyError if an array is missing, ValueError if the knots are not monotone."""
        needed = [f.name for f in fields(cls) if f.default_factory is MISSING or "tied" in arrays]
        values = {name: arrays[name] for name in needed}
        if not (np.diff(values["similarities"]) > 0).all() or not (np.diff(values["logits"]) < 0).all():
            raise ValueError("the knots of a reference must rise in similarity and fall in rate")
        numbers = {name: float(values.pop(name)) for name in ("shape", "scale", "tail_error")}
        counts = {name: int(values.pop(name)) for name in ("sentences", "pairs")}
        return cls(**values, **numbers, **counts)  # type: ignore[arg-type]


def exceedance(excess: Doubles, shape: float, scale: float) -> Doubles:
    """P(Y > excess) of a generalized Pareto distribution (Pickands, 1975).

    >>> exceedance(np.array([0.0, 1.0, 2.0]), shape=0.0, scale=1.0).round(3)
    array([1.   , 0.368, 0.135])
    >>> exceedance(np.array([0.0, 1.0, 2.0]), shape=1.0, scale=1.0).round(3)
    array([1.   , 0.5  , 0.333])
    """
    if shape == 0:
        tail: Doubles = np.exp(-excess / scale)
        return tail
    base: Doubles = np.maximum(1 + shape * excess / scale, 1e-300)
    return base ** (-1 / shape)
