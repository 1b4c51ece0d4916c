"""Learns the probability of a match, or a mean grade, from a domain's labelled pairs.

The probability is a function of the evidence (−logit of the false-match rate): a logistic regression whose logit is
piecewise linear and increasing. Reported errors are cross-validated.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.special import expit, logit
from scipy.stats import norm

from isosim.arrays import Doubles
from isosim.fitting.recall import TAIL, at_thresholds
from isosim.scoring.probability import ProbabilityMap, evidence, parts, smooth_targets
from isosim.scoring.reference import ReferenceDistribution

Curve = Callable[[Doubles], Doubles]  # evidence (N,) -> probability (N,)

# Prior means of the twelve slopes of the logit, from the lowest to the highest scores. With a slope of 0.9, the logit
# of the match probability rises by 0.9 if the evidence rises by 1. The values were the best for STS-B and SICK with 100
# labels, both for vectors of an encoder's last layer and for softly whitened vectors of a middle layer. Six slopes are
# too few for 1,000 labels (Quora, multilingual-e5-small: calibration error 0.028 instead of 0.022); 16 change nothing.
SLOPES = np.array([1.15, 1.15, 1.15, 1.15, 1.15, 1.12, 1.08, 1.02, 0.95, 0.86, 0.68, 0.5])
SLOPE_PRECISION = 16.0  # prior precision of the mean slope (its prior standard deviation is 1/4)
SMOOTHNESS = 1.0  # strength of the prior that keeps neighbouring slopes similar (see `bending_line`)
GRID = 129  # number of knots of a stored curve
LEVELS = np.linspace(0.50, 0.99, 50)  # precisions for which thresholds are determined
FEWEST_ABOVE = 10  # a precision is stated for a threshold only if at least this many pairs reach the threshold
BOOTSTRAPS = 200  # samples of the pairs for the intervals of thresholds
BINS, PAIRS_A_BIN = 15, 10  # of a reliability curve: largest number of bins, and smallest number of pairs in a bin
NEIGHBOURS = 0.2  # `within_scores` compares each pair with this share of all pairs


@dataclass(frozen=True)
class LabelledScores:
    """Labelled pairs; all arrays are (M,). `low` and `high` are the ends of the labels' scale.

    `weights` are inverse sampling probabilities, scaled to mean 1. A pair of weight 2 represents twice as many pairs of
    the population as a pair of weight 1.
    """

    similarities: Doubles
    labels: Doubles
    weights: Doubles
    low: float
    high: float
    graded: bool

    @classmethod
    def build(
        cls,
        similarities: npt.ArrayLike,
        labels: npt.ArrayLike,
        weights: npt.ArrayLike | None = None,
        *,
        graded: bool = False,
    ) -> "LabelledScores":
        """Takes pairs that were checked (`requirements.check_labels`). `graded`: the labels are grades; otherwise 1
        means a match and 0 no match. The scale is 0 to 1 if all labels lie there, else 0 to 5."""
        x, y = np.asarray(similarities, np.float64), np.asarray(labels, np.float64)
        w = np.ones(y.shape) if weights is None else np.asarray(weights, np.float64)
        relative = w / w.max()
        return cls(x, y, relative / relative.mean(), 0.0, 1.0 if (y <= 1).all() else 5.0, graded)

    @property
    def targets(self) -> Doubles:
        """Labels on a scale of 0–1. (M,)"""
        return (self.labels - self.low) / (self.high - self.low)


def effective(weights: Doubles) -> float:
    """Number of equally weighted pairs that give a mean as accurately as these pairs (Kish, 1965, section 8.2). (M,)"""
    return float(weights.sum() ** 2 / np.square(weights).sum())


def within_scores(x: Doubles, weights: Doubles) -> Doubles:
    """Divides each weight by the mean weight of the pairs with similar scores x. (M,), (M,) -> (M,)

    The curves estimate P(match | score). Weights that depend on the score alone do not change this probability, but
    make its estimate less accurate. The division removes the dependence on the score. Among pairs with similar scores,
    the ratios of the weights stay the same. These ratios matter if the sampling depended on the label.
    """
    order = np.argsort(x, kind="stable")
    count = len(x)
    half = max(int(NEIGHBOURS * count / 2), 5)
    sums = np.concatenate([[0.0], np.cumsum(weights[order])])
    place = np.arange(count)
    low, high = np.maximum(place - half, 0), np.minimum(place + half + 1, count)
    local = np.empty(count)
    local[order] = weights[order] / ((sums[high] - sums[low]) / (high - low))
    even: Doubles = local / local.mean()
    return even


def ramps(x: Doubles, knots: Doubles) -> Doubles:
    """Splits x minus the first knot into parts, one per interval between knots. (N,), (K+1,) -> (N, K)

    With the knots 0, 1, 2, the value 1.5 becomes [1, 0.5]. The first and the last interval extend to infinity: 3
    becomes [1, 2], and −1 becomes [−1, 0].
    """
    inner = np.concatenate([[-np.inf], knots[1:-1], [np.inf]])
    reached: Doubles = np.clip(x[:, None], inner[:-1], inner[1:]) - np.clip(knots[0], inner[:-1], inner[1:])
    return reached


def least_probability(count: int) -> float:
    """The smallest probability that is stated after learning from `count` pairs; the largest is 1 minus this."""
    return max(1 / (2 * count + 4), 5e-4)


def bending_line(x: Doubles, targets: Doubles, weights: Doubles, slopes: Doubles = SLOPES) -> Curve:
    """Logistic regression with a piecewise linear logit over K intervals of x, each with a slope of at least 0.

    A Gaussian prior keeps each slope near its prior mean in `slopes` (K,). It also makes neighbouring slopes deviate
    from their prior means by similar amounts. Each knot between intervals lies in the middle between two points: the
    knot for intervals of equal width, and the knot for intervals with equal numbers of pairs. With one interval the
    curve is Platt's line. Grades are fitted in the same way: on STS-B and SICK, linear regression was no better.
    x, targets, weights: (N,).
    """
    quantiles = np.quantile(x, np.linspace(0.02, 0.98, len(slopes) + 1))
    knots = (quantiles + np.linspace(quantiles[0], quantiles[-1], len(quantiles))) / 2
    centre = ramps(np.array([np.average(x, weights=weights)]), knots)
    design = np.column_stack([ramps(x, knots) - centre, np.ones(len(x))])
    width = (knots[-1] - knots[0]) / len(slopes)
    bends = np.diff(np.eye(len(slopes)), axis=0) * width
    precision = SMOOTHNESS * bends.T @ bends + SLOPE_PRECISION / len(slopes) * np.eye(len(slopes))
    wanted = smooth_targets(targets, weights)

    def loss(parameters: Doubles) -> tuple[float, Doubles]:
        logits = design @ parameters
        away = parameters[:-1] - slopes
        pull = precision @ away
        value = weights @ (np.logaddexp(0, logits) - wanted * logits) + away @ pull / 2
        return float(value), design.T @ (weights * (expit(logits) - wanted)) + np.append(pull, 0.0)

    start = np.append(slopes, logit(np.average(wanted, weights=weights)))
    bounds = [(0.0, None)] * len(slopes) + [(None, None)]
    solution = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    clip = least_probability(len(x))
    return lambda asked: np.clip(expit((ramps(asked, knots) - centre) @ solution[:-1] + solution[-1]), clip, 1 - clip)


def log_loss(probabilities: Doubles, targets: Doubles) -> Doubles:
    """Cross-entropy of each pair, in nats. (N,), (N,) -> (N,)"""
    loss: Doubles = -(targets * np.log(probabilities) + (1 - targets) * np.log1p(-probabilities))
    return loss


def out_of_fold(x: Doubles, targets: Doubles, weights: Doubles, rng: np.random.Generator) -> Doubles:
    """Probabilities of each fold's pairs, from a curve that was fitted to the other folds. All arrays: (N,)."""
    predictions = np.empty(len(x))
    for train, test in parts(targets, rng):
        predictions[test] = bending_line(x[train], targets[train], weights[train])(x[test])
    return predictions


def knots_of(curve: Curve, x: Doubles) -> tuple[Doubles, Doubles]:
    """Samples a curve at K knots, so that it can be stored. Returns evidence and logits, both (K,).

    The knots are evenly spaced over the middle 99 % of x (N,). One more knot lies on each side: for example, if the
    range is 0 to 4, at −4 and 8.
    """
    low, high = np.quantile(x, [0.005, 0.995])
    if high - low < 1e-6:
        low, high = low - 0.5, high + 0.5
    knots = np.concatenate([[2 * low - high], np.linspace(low, high, GRID - 2), [2 * high - low]])
    return knots, np.maximum.accumulate(logit(curve(knots)))


def precision_thresholds(
    similarities: Doubles, probabilities: Doubles, weights: Doubles, counts: Doubles | None = None
) -> Doubles:
    """For each precision in LEVELS, the lowest threshold that reaches it; NaN if no threshold does. (L,)

    The precision of a threshold is the mean probability of the pairs whose similarity is at least the threshold. Only
    thresholds with at least 10 such pairs are considered.

    Args:
        similarities: (N,), descending. Their probabilities (N,) also descend; weights (N,) are in the same order.
        counts: (N,) number of times that each pair is in a bootstrap sample; None: the weights are used.
    """
    above = np.cumsum(weights)
    last_of_equals = np.append(similarities[1:] < similarities[:-1], True)
    usable = last_of_equals & (np.cumsum(weights if counts is None else counts) >= FEWEST_ABOVE)
    # `precision` falls, because `probabilities` falls. So `searchsorted` can be used below.
    precision = (np.cumsum(weights * probabilities) / np.maximum(above, 1e-12))[usable]
    reaching = np.searchsorted(-precision, -LEVELS, side="right")
    candidates = np.append(np.nan, similarities[usable])
    thresholds: Doubles = candidates[reaching]
    return thresholds


def with_precisions(
    learnt: ProbabilityMap, pairs: LabelledScores, x: Doubles, curve: Curve, rng: np.random.Generator
) -> ProbabilityMap:
    """Adds thresholds and recalls for the precisions that the pairs reach, and 95 % intervals of all three.

    The intervals of the thresholds come from a bootstrap over pairs, with a curve fitted to every sample. If a sample
    does not reach a precision, the highest similarity counts as the threshold. x: (M,).
    """
    order = np.argsort(-pairs.similarities, kind="stable")
    similarities, x, targets = pairs.similarities[order], x[order], pairs.targets[order]
    own = pairs.weights[order]
    local = within_scores(x, own)
    centre = precision_thresholds(similarities, curve(x), own, np.ones(len(x)))
    reached = np.isfinite(centre)
    counted = at_thresholds(centre[reached], similarities, targets, own, LEVELS[reached])
    draws = np.empty((BOOTSTRAPS, int(reached.sum())))
    for draw in range(BOOTSTRAPS if reached.any() else 0):
        counts = rng.multinomial(len(x), np.full(len(x), 1 / len(x))).astype(np.float64)
        again = bending_line(x, targets, counts * local)
        draws[draw] = precision_thresholds(similarities, again(x), counts * own, counts)[reached]
    low, high = np.quantile(np.where(np.isnan(draws), similarities[0], draws), [TAIL, 1 - TAIL], axis=0)
    return replace(
        learnt,
        precisions=LEVELS[reached],
        thresholds=centre[reached],
        interval_low=np.minimum(low, centre[reached]),
        interval_high=np.maximum(high, centre[reached]),
        **counted._asdict(),
    )


def stored(pairs: LabelledScores, x: Doubles, curve: Curve) -> ProbabilityMap:
    """The map of a curve along x (M,), as it is stored; without thresholds by precision, which grades do not have."""
    knots, logits = knots_of(curve, x)
    scale = pairs.low, pairs.high, pairs.graded
    return ProbabilityMap(knots, logits, least_probability(len(x)), *scale, len(x), *[np.empty(0)] * 9)


@dataclass(frozen=True)
class Comparison:
    """Mean log-loss (nats) of two maps on the same labels, and the standard error of the difference."""

    loss: float
    rival_loss: float
    standard_error: float


@dataclass(frozen=True)
class Bin:
    """Pairs with similar probabilities, on a scale of 0–1."""

    predicted: float  # mean probability
    observed: float  # mean label
    low: float  # 95 % interval of the true mean label
    high: float
    pairs: int


@dataclass(frozen=True, kw_only=True)
class ProbabilityReport:
    """How well probabilities that were learnt from labels predict labels that were held out."""

    pairs: int
    graded: bool
    labels: tuple[float, float]  # lowest and highest possible label
    mean_label: float  # on a scale of 0–1
    reliability: list[Bin]  # by rising probability
    positives: float | None = None  # share of matches; None for grades, as the next two
    brier: float | None = None
    log_loss: float | None = None  # in nats
    rmse: float | None = None  # in grades; None for matches, as the next
    pearson: float | None = None
    effective_pairs: float | None = None  # None: all pairs have the same weight


def report(pairs: LabelledScores, probabilities: Doubles) -> ProbabilityReport:
    """Measures held-out probabilities (M,)."""
    targets = pairs.targets
    mean = partial(np.average, weights=pairs.weights)
    error = probabilities - targets
    if pairs.graded:
        away = probabilities - mean(probabilities), targets - mean(targets)
        spread = float(np.sqrt(mean(away[0] ** 2) * mean(away[1] ** 2)))
        rmse = float(np.sqrt(mean(error**2))) * (pairs.high - pairs.low)
        pearson = float(mean(away[0] * away[1])) / spread if spread > 0 else 0.0
        errors: dict[str, Any] = {"rmse": rmse, "pearson": pearson}
    else:
        losses = log_loss(probabilities, targets)
        errors = {"positives": float(mean(targets)), "brier": float(mean(error**2)), "log_loss": float(mean(losses))}
    return ProbabilityReport(
        pairs=len(targets),
        graded=pairs.graded,
        labels=(pairs.low, pairs.high),
        mean_label=float(mean(targets)),
        reliability=reliability(probabilities, targets, pairs.weights, graded=pairs.graded),
        effective_pairs=effective(pairs.weights) if (pairs.weights != 1).any() else None,
        **errors,
    )


def reliability(probabilities: Doubles, targets: Doubles, weights: Doubles, *, graded: bool) -> list[Bin]:
    """Compares held-out probabilities with targets, in bins of equal numbers of pairs. All arrays: (N,)."""
    bins = int(np.clip(len(targets) // PAIRS_A_BIN, 2, BINS))
    predicted, observed, counts, _ = equal_mass_bins(probabilities, targets, bins, weights)
    if graded:
        square = equal_mass_bins(probabilities, targets**2, bins, weights)[1]
        half = float(norm.ppf(1 - TAIL)) * np.sqrt(np.maximum(square - observed**2, 0) / np.maximum(counts - 1, 1))
        low, high = np.maximum(observed - half, 0), np.minimum(observed + half, 1)
    else:
        low, high = wilson(observed, counts)
    columns = (column.tolist() for column in (predicted, observed, low, high, counts.astype(np.intp)))
    return [Bin(*row) for row in zip(*columns, strict=True)]


def equal_mass_bins(
    probabilities: Doubles, targets: Doubles, bins: int, weights: Doubles
) -> tuple[Doubles, Doubles, Doubles, Doubles]:
    """Mean probability, mean target, number and total weight of each bin's pairs. (N,) -> (B,)

    The bins have equal numbers of pairs; the first bin has the lowest probabilities.
    """
    order = np.argsort(probabilities, kind="stable")
    starts = np.array([part[0] for part in np.array_split(np.arange(len(order)), bins)])
    counts = np.diff(np.append(starts, len(order))).astype(np.float64)
    mass = np.add.reduceat(weights[order], starts)
    predicted, observed = (np.add.reduceat((weights * v)[order], starts) / mass for v in (probabilities, targets))
    return predicted, observed, counts, mass


def wilson(share: Doubles, counts: Doubles) -> tuple[Doubles, Doubles]:
    """95 % interval of a share observed on `counts` pairs (Wilson, 1927). (B,), (B,) -> (B,), (B,)"""
    z = float(norm.ppf(1 - TAIL))
    centre = (share + z**2 / (2 * counts)) / (1 + z**2 / counts)
    half = z * np.sqrt(share * (1 - share) / counts + z**2 / (4 * counts**2)) / (1 + z**2 / counts)
    # Without the clipping, rounding errors could put `share` outside the interval.
    return np.clip(centre - half, 0, share), np.clip(centre + half, share, 1)


def fit(
    similarities: npt.ArrayLike,
    reference: ReferenceDistribution,
    labels: npt.ArrayLike,
    seed: int,
    weights: npt.ArrayLike | None = None,
    *,
    graded: bool = False,
) -> tuple[ProbabilityMap, ProbabilityReport]:
    """Fits a probability map to labelled pairs (M,), and reports its cross-validated errors.

    With 100 labelled Quora pairs, the calibration error on other Quora pairs is 0.050. With 1,000 pairs it is 0.022
    (vectors of the encoder's last layer).

    Args:
        reference: reference distribution of the values in `similarities`.
        weights: (M,) number of pairs of the population that each pair represents; the map, the precisions and the
            recalls then apply to the population.
        graded: the labels are grades, not 0 and 1.
    """
    pairs = LabelledScores.build(similarities, labels, weights, graded=graded)
    rng = np.random.default_rng(seed)
    x = evidence(reference.false_match_rate(pairs.similarities))
    local = within_scores(x, pairs.weights)
    curve = bending_line(x, pairs.targets, local)
    held_out = out_of_fold(x, pairs.targets, local, rng)
    learnt = stored(pairs, x, curve)
    if not graded:
        learnt = with_precisions(learnt, pairs, x, curve, rng)
    return learnt, report(pairs, held_out)


def compare(pairs: LabelledScores, predicted: Doubles, rival: Doubles) -> Comparison:
    """Compares out-of-fold predictions (M,) with a rival's (M,)."""
    share = pairs.weights / pairs.weights.sum()
    ours, theirs = log_loss(predicted, pairs.targets), log_loss(rival, pairs.targets)
    difference = ours - theirs
    error = float(np.sqrt(np.square(share * (difference - share @ difference)).sum()))
    return Comparison(float(share @ ours), float(share @ theirs), error)
