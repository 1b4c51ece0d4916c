"""Probability that a pair is a match, given its score, estimated from a domain's labelled pairs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from isosim.arrays import Doubles, Mask

FOLDS = 5
NEAREST = 1e-12  # false-match rates are clipped to this distance from 0 and 1 before the logit


def evidence(false_match_rates: npt.ArrayLike) -> Doubles:
    """−logit of the false-match rate: an unbounded scale for how rare a score is. (N,) -> (N,)

    >>> evidence([0.5, 0.1, 0.01]).round(3)
    array([0.   , 2.197, 4.595])
    """
    rates = np.clip(np.asarray(false_match_rates, np.float64), NEAREST, 1 - NEAREST)
    return np.log1p(-rates) - np.log(rates)


def smooth_targets(targets: Doubles, weights: Doubles) -> Doubles:
    """Platt's targets (1999, section 2.2), which avoid probabilities of 0 and 1. (N,), (N,) -> (N,)

    With n matches and m other pairs (sums of weights), the target is (n + 1) / (n + 2) for a match and 1 / (m + 2) for
    another pair. Grades between 0 and 1 are mapped linearly between these two values.
    """
    matches = float(weights @ targets)
    others = float(weights.sum()) - matches
    low, high = 1 / (others + 2), (matches + 1) / (matches + 2)
    wanted: Doubles = low + (high - low) * targets
    return wanted


def parts(targets: Doubles, rng: np.random.Generator) -> Iterator[tuple[Mask, Mask]]:
    """Yields masks (N,) of the training and the held-out pairs of each fold.

    Every fold has nearly the same share of each label.
    """
    fold = np.empty(len(targets), np.intp)
    fold[np.lexsort((rng.random(len(targets)), targets))] = np.arange(len(targets)) % FOLDS
    for number in range(FOLDS):
        yield fold != number, fold == number


def read_curve(x: Doubles, knots: Doubles, logits: Doubles, clip: float) -> Doubles:
    """Probability, whose logit is piecewise linear in x and constant beyond the knots. (N,), (K,), (K,) -> (N,)"""
    return np.clip(1 / (1 + np.exp(-np.interp(x, knots, logits))), clip, 1 - clip)


def check_curve(knots: Doubles, logits: Doubles, clip: float) -> None:
    """Raises ValueError if `read_curve` cannot read the curve, or if it falls."""
    if knots.ndim != 1 or knots.shape != logits.shape or len(knots) < 2:
        raise ValueError("a probability map needs two knots or more, and one logit for each")
    if not (np.diff(knots) > 0).all() or not (np.diff(logits) >= 0).all():
        raise ValueError("the knots of a probability map must rise, and their logits must not fall")
    if not 0 <= clip < 0.5:
        raise ValueError("a probability map needs a clip in [0, 0.5)")


@dataclass(frozen=True)
class ProbabilityMap:
    """Monotone map from the false-match rate to a probability or mean grade, and a table of thresholds by precision.

    The logit of the probability is piecewise linear in the evidence (−logit of the false-match rate) and constant
    beyond the knots. The table is valid only for pairs with the same share of matches as the labelled pairs, because
    precision depends on this share.
    """

    knots: Doubles  # (K,) evidence, rising
    logits: Doubles  # (K,) logit of the probability at the knots, never falling
    clip: float  # probabilities are clipped to clip … 1 − clip
    low: float  # lowest label: 0, or the lowest grade; `high` is 1, or the highest grade
    high: float
    graded: bool
    pairs: int  # number of labelled pairs
    precisions: Doubles  # (P,) precisions that the labels reach, rising; empty for grades
    # (P,) for each precision, the threshold that reaches it: a similarity, in a `PairMap` a probability; never falling
    thresholds: Doubles
    interval_low: Doubles  # (P,) 95 % interval of the threshold, by bootstrap over the labelled pairs
    interval_high: Doubles  # (P,)
    recalls: Doubles  # (P,) share of matches at or above the threshold
    recall_low: Doubles  # (P,) 95 % interval of the recall
    recall_high: Doubles  # (P,)
    precision_low: Doubles  # (P,) 95 % interval of the precision at the threshold
    precision_high: Doubles  # (P,)

    def probability(self, false_match_rates: Doubles) -> Doubles:
        """Probability of a match, monotone in the rate; for grades, (mean grade − low) / (high − low). (N,) -> (N,)

        >>> table, knots = np.empty(0), np.array([0.0, 5.0])
        >>> learnt = ProbabilityMap(knots, knots - 2, 0.01, 0, 1, False, 100, *[table] * 9)
        >>> learnt.probability(np.array([0.5, 0.1, 0.01])).round(3)
        array([0.119, 0.549, 0.931])
        """
        return read_curve(evidence(false_match_rates), self.knots, self.logits, self.clip)

    def precision_threshold(self, precision: float) -> tuple[float, float, float]:
        """The threshold for a precision, and the threshold's 95 % interval.

        A precision of 0.9 means that 90 % of the pairs that reach the threshold are matches.

        Raises:
            ValueError: the labels are grades, or the labelled pairs do not reach the precision.
        """
        if self.graded:
            raise ValueError("a precision needs the labels 0 and 1 (match); the labels of this domain are grades")
        if not len(self.precisions):
            raise ValueError(
                f"the {self.pairs} labelled pairs reach no precision of 0.5: at each threshold that enough labelled "
                "pairs reach, less than half of the pairs that reach it are matches; label more pairs that score high"
            )
        lowest, highest = float(self.precisions[0]), float(self.precisions[-1])
        if not lowest <= precision <= highest:
            beyond = "for a higher one, label more pairs that score high"
            if precision < lowest:
                beyond = f"below {lowest:.2f}, more of the pairs that pass would be wrong than right"
            raise ValueError(
                f"precision is {precision:g}; it must be between {lowest:.2f} and {highest:.2f}, the highest that the "
                f"{self.pairs} labelled pairs reach; {beyond}"
            )
        return self._at(precision, self.thresholds), *self._interval(precision, self.interval_low, self.interval_high)

    def recall(self, precision: float) -> tuple[float, float, float]:
        """Share of the matches that reach the threshold for `precision`, and the share's 95 % interval."""
        return self._at(precision, self.recalls), *self._interval(precision, self.recall_low, self.recall_high)

    def precision_interval(self, precision: float) -> tuple[float, float]:
        """95 % interval of the true precision at the threshold for `precision`."""
        return self._interval(precision, self.precision_low, self.precision_high)

    def _interval(self, precision: float, low: Doubles, high: Doubles) -> tuple[float, float]:
        return self._at(precision, low), self._at(precision, high)

    def _at(self, precision: float, column: Doubles) -> float:
        return float(np.interp(precision, self.precisions, column))

    def arrays(self) -> dict[str, Doubles]:
        """The fields as arrays, for storage; `from_arrays` is the inverse."""
        return {f.name: np.asarray(getattr(self, f.name), np.float64) for f in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> "ProbabilityMap":
        """Raises KeyError if an array is missing, ValueError if an array is invalid."""
        values: dict[str, Any] = {f.name: np.asarray(arrays[f.name], np.float64) for f in fields(cls)}
        for name, kind in (("clip", float), ("low", float), ("high", float), ("graded", bool), ("pairs", int)):
            values[name] = kind(values[name])
        probability_map = cls(**values)
        if not all(np.isfinite(value).all() for value in probability_map.arrays().values()):
            raise ValueError("a probability map must consist of finite numbers")
        check_curve(probability_map.knots, probability_map.logits, probability_map.clip)
        if not probability_map.low < probability_map.high:
            raise ValueError("a probability map needs labels of more than one value")
        probability_map.check_table()
        return probability_map

    def check_table(self) -> None:
        """Raises ValueError if the table of thresholds is invalid.

        Precisions must rise, and thresholds must not fall. Each threshold, recall and precision must lie inside the
        interval that is stored for it.
        """
        intervals = {
            "threshold": (self.interval_low, self.thresholds, self.interval_high),
            "recall": (self.recall_low, self.recalls, self.recall_high),
            "precision": (self.precision_low, self.precisions, self.precision_high),
        }
        if self.precisions.ndim != 1:
            raise ValueError("the precisions must be a list")
        for name, columns in intervals.items():
            if any(column.shape != self.precisions.shape for column in columns):
                raise ValueError(f"every precision needs a {name} and its interval")
        if self.graded and len(self.precisions):
            raise ValueError("grades have no precisions")
        if not (np.diff(self.precisions) > 0).all() or not (np.diff(self.thresholds) >= 0).all():
            raise ValueError("precisions must rise, and their thresholds must not fall")
        for name, (low, centre, high) in intervals.items():
            if not ((low <= centre) & (centre <= high)).all():
                raise ValueError(f"a {name} lies outside its own interval")
