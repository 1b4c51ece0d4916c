"""Precision and recall at every threshold, from labels on some of the candidates.

Usage: `estimate(candidates.similarity, judged, labels).at(0.8).precision`.

A judged candidate follows its label: one with label 1 passes every threshold, one with label 0 passes none. So the
figures are those of what is given out. Its judged pairs are known; only the number of matches among the others, the
rest, is estimated. At a threshold the precision is (matches of the rest + labels 1) / (size of the rest + labels 1), a
rising function of what the curve says of all candidates, so its intervals hold the true value as often.

The labels teach a curve P(match | similarity), which is summed over all candidates, whose similarities are known. So
labels need no weights, however the candidates to judge were chosen, as long as the choice did not depend on the label.

The logit of the curve is piecewise linear in the similarity and never falls: a prior keeps its slopes positive and
neighbouring slopes similar. Intervals come from draws of the curve's posterior distribution, each with a draw of the
labels of the candidates that are not judged.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from isosim.arrays import Doubles, Floats, Integers, Rows

INTERVALS = 12  # of the piecewise linear logit, as in fitting/probability.py
# Prior of the logarithms of the logit's rise over an interval: mean, standard deviation of what all intervals have in
# common and of what differs, and number of intervals over which the latter is similar.
RANGE = 8  # rise of the logit over all intervals
RISE, COMMON, DIFFERENT, SIMILAR = float(np.log(RANGE / INTERVALS)), 0.6, 1.1, 2.0
# Power of the likelihood, which widens the intervals for curves that bend within an interval: with 1, only 83 % of the
# intervals of Quora's precision held the true value.
TRUST = 0.85
ADJUSTED_TRUST = 0.7  # where the similarities were adjusted to the labels; with 0.85, 88 % of some recalls' held it
MIDDLE = 5.0  # prior standard deviation of the logit in the middle; its mean is 0
STEPS = 30  # of Newton's method at most
PROPOSALS = 1200  # draws of which DRAWS are kept in proportion to their posterior density
DRAWS = 400
FREEDOM = 5  # degrees of freedom of the proposals' t distribution
# A threshold is recommended only if 5 % of the judged candidates reach it, 5 at least and 10 at most: the best of many
# thresholds that few labels reach is often one above which the labels are matches by chance.
SHARE_ABOVE, FEWEST_ABOVE = 0.05, (5, 10)
BINS = 160  # groups of candidates with similar similarities; finer at the top


@dataclass(frozen=True)
class Point:
    """What is expected of the candidates that pass a threshold: those that reach it, without those with label 0, and
    those with label 1. The intervals are those of the true values."""

    threshold: float
    passing: int
    false: float  # expected number of passing candidates that are no matches; none of them is judged
    false_interval: tuple[float, float]
    precision: float | None  # share of matches among the passing candidates; None: none passes
    precision_interval: tuple[float, float] | None
    recall: float | None  # share of the candidates' matches that pass; None: there are no matches in any draw
    recall_interval: tuple[float, float] | None


class Bins:
    """Groups of successive candidates, from high to low similarity: single ones at the top, larger ones below."""

    def __init__(self, similarity: Floats) -> None:
        count = len(similarity)
        edges = np.unique(np.round(np.geomspace(1, max(count, 1), BINS)).astype(np.intp))
        self.edges: Rows = np.append(0, edges[edges <= count])  # (B + 1,) numbers of candidates
        self.sizes = np.diff(self.edges)
        sums = np.add.reduceat(similarity.astype(np.float64), self.edges[:-1]) if count else np.empty(0)
        self.scale = Scale.of(similarity)
        self.parts = self.scale.parts(sums / self.sizes)  # (B, INTERVALS)

    def counts(self, judged: Integers, labels: npt.ArrayLike) -> tuple[Rows, Rows]:
        """Numbers of the labels 1 and 0 in each group, given those of some candidates. (N,), (N,) -> (B,), (B,)"""
        rows, known = np.asarray(judged, np.intp), np.asarray(labels)
        matches, others = (
            np.bincount(np.searchsorted(self.edges, rows[known == label], side="right") - 1, minlength=len(self.sizes))
            for label in (1, 0)
        )
        return matches, others


@dataclass(frozen=True)
class Scale:
    """Divides the range of the candidates' similarities into intervals of equal angles, which are finer near 1.

    Among Quora's questions the share of matches falls from 0.98 to 0.89 between the similarities 1 and 0.98, and no
    further than to 0.80 down to 0.94; equal intervals of the similarity itself miss this.
    """

    low: float  # as angles, see `angle`
    high: float

    @classmethod
    def of(cls, similarity: Floats) -> "Scale":
        low, high = (angle(similarity[[-1, 0]])).tolist() if len(similarity) else (-1.0, 0.0)
        return cls(low, max(high, low + 1e-6))

    def parts(self, similarity: Floats) -> Doubles:
        """Length of each interval between the middle of the range and a similarity, signed. (N,) -> (N, INTERVALS)"""
        place = (angle(similarity) - self.low) / (self.high - self.low) * INTERVALS
        reached: Doubles = np.clip(place[:, None] - np.arange(INTERVALS), 0, 1)
        return reached - (np.arange(INTERVALS) < INTERVALS / 2)


def angle(similarity: Floats) -> Doubles:
    """Minus the angle between the vectors of a pair, from −π to 0. (N,) -> (N,)"""
    negative: Doubles = -np.arccos(np.clip(similarity.astype(np.float64), -1, 1))
    return negative


def prior() -> tuple[Doubles, Doubles]:
    """Mean (INTERVALS + 1,) and precision of the parameters: logarithms of the rises, then the middle's logit."""
    apart = np.abs(np.subtract.outer(np.arange(INTERVALS), np.arange(INTERVALS)))
    precision = np.zeros((INTERVALS + 1, INTERVALS + 1))
    precision[:-1, :-1] = np.linalg.inv(COMMON**2 + DIFFERENT**2 * np.exp(-apart / SIMILAR))
    precision[-1, -1] = MIDDLE**-2
    return np.append(np.full(INTERVALS, RISE), 0.0), precision


def sigmoid(logits: Doubles) -> Doubles:
    return 0.5 + 0.5 * np.tanh(logits / 2)


def logits_of(parts: Doubles, parameters: Doubles) -> Doubles:
    """(N, INTERVALS), (R, INTERVALS + 1) -> (R, N)"""
    logits: Doubles = np.exp(parameters[:, :-1]) @ parts.T + parameters[:, -1:]
    return logits


def posterior(
    bins: Bins, matches: Integers, others: Integers, rng: np.random.Generator, draws: int = DRAWS, trust: float = TRUST
) -> Doubles:
    """Draws of the curve's parameters, given the numbers of labels 1 and 0 in each group (B,). (draws, K)

    Proposals come from a t distribution around the posterior's mode and are resampled by their importance.
    """
    mean, precision = prior()
    known = np.flatnonzero(matches + others)
    parts, right, judged = bins.parts[known], matches[known], (matches + others)[known]

    def log_density(parameters: Doubles) -> Doubles:  # (R, K) -> (R,)
        logits, away = logits_of(parts, parameters), parameters - mean
        fit = trust * (logits @ right - np.logaddexp(0, logits) @ judged)
        density: Doubles = fit - ((away @ precision) * away).sum(1) / 2
        return density

    mode, height = mean, log_density(mean[None])[0]
    for _ in range(STEPS):
        chances = sigmoid(logits_of(parts, mode[None])[0])
        slopes = np.column_stack([parts * np.exp(mode[:-1]), np.ones(len(parts))])
        curvature = slopes.T @ (slopes * (trust * judged * chances * (1 - chances))[:, None]) + precision
        gradient = trust * slopes.T @ (right - judged * chances) - precision @ (mode - mean)
        step = np.linalg.solve(curvature, gradient)
        tried = mode + step * 0.5 ** np.arange(8)[:, None]
        heights = log_density(tried)
        best = int(heights.argmax())
        if heights[best] <= height + 1e-6:
            break
        mode, height = tried[best], heights[best]
    root = np.linalg.cholesky(np.linalg.inv(curvature))
    normal = rng.standard_normal((PROPOSALS, len(mode)))
    heavy = np.sqrt(rng.chisquare(FREEDOM, PROPOSALS) / FREEDOM)[:, None]
    proposals = mode + normal / heavy @ root.T
    distance = np.square(normal / heavy).sum(1)
    density = -(FREEDOM + len(mode)) / 2 * np.log1p(distance / FREEDOM)
    weights = log_density(proposals) - density
    total = np.cumsum(np.exp(weights - weights.max()))
    places = (rng.random() + np.arange(draws)) / draws * total[-1]
    kept: Doubles = proposals[np.minimum(np.searchsorted(total, places), PROPOSALS - 1)]
    return kept


@dataclass(frozen=True)
class Estimate:
    """Draws of the number of matches among the first candidates, and what follows from them."""

    similarity: Floats  # (P,) of the candidates, from high to low
    judged: Rows  # (N,) rising, of candidates with a label
    confirmed: int  # number of labels 1
    confidence: float
    edges: Rows  # (B + 1,) numbers of candidates, from 0 to P
    rest: Rows  # (B + 1,) how many of so many first candidates have no label
    matches: Doubles  # (DRAWS, B + 1) matches among these
    chances: Doubles  # (DRAWS, B) P(match | similarity) of the candidates between two edges

    def knowing(self, chosen: Integers, labels: npt.ArrayLike) -> "Estimate":
        """With the labels of candidates that a person chose because of what they say. (C,), (C,)

        Such a choice tells nothing of other candidates. Among all those that are not `judged`, as many matches and as
        many others are expected as before, and the chosen ones are some of these: picking out the right pairs does not
        raise the share of matches among the others. If fewer are left than expected, all of them are expected to be so.
        """
        rows, known = np.asarray(chosen, np.intp), np.asarray(labels, np.intp)
        every, same = (np.searchsorted(np.sort(part), self.edges) for part in (rows, rows[known == 1]))
        rest = self.rest - every
        return replace(
            self,
            judged=np.sort(np.append(self.judged, rows)),
            confirmed=self.confirmed + int(known.sum()),
            rest=rest,
            matches=np.clip(self.matches - same, 0, rest),
        )

    def probabilities(self, rows: Integers) -> Doubles:
        """P(match) of candidates, by their similarity alone. (N,) -> (N,)"""
        found: Doubles = self.chances.mean(0)[np.searchsorted(self.edges, rows, side="right") - 1]
        return found

    def at(self, threshold: float) -> Point:
        return self.at_many([threshold])[0]

    def at_many(self, thresholds: Sequence[float] | Floats | None = None) -> list[Point]:
        """The point of each threshold; by default those of a curve to draw, from high to low."""
        if thresholds is None:
            thresholds = np.unique(self.similarity[self.edges[1:] - 1])[::-1]
        return [self._point(float(threshold)) for threshold in thresholds]

    def curve(self) -> Doubles:
        """Similarity, P(match | similarity) and its interval's limits, at the last candidate of each group. (B, 4)"""
        tail = (1 - self.confidence) / 2
        limits = np.quantile(self.chances, [tail, 1 - tail], axis=0)
        return np.stack([self.similarity[self.edges[1:] - 1], self.chances.mean(0), *limits], 1)

    def threshold_for(self, precision: float, *, bound: bool = False) -> float | None:
        """The lowest threshold with this precision, or with `bound` this lower end of its interval.

        The result is one of the candidates' similarities; None: no threshold that enough judged candidates reach has
        this precision (FEWEST_ABOVE).
        """
        values = self._precisions(bound)
        for edge in self.edges[1:][values >= precision][::-1]:
            point = self.at(float(self.similarity[edge - 1]))  # equal similarities pass together
            value = point.precision_interval[0] if bound and point.precision_interval else point.precision
            if value is not None and value >= precision:
                return point.threshold
        return None

    def highest(self, *, bound: bool = False) -> Point | None:
        """The point with the highest precision, or lower end of its interval; None: too few pairs are judged."""
        values = self._precisions(bound)
        if not np.isfinite(values).any():
            return None
        return self.at(float(self.similarity[self.edges[1 + int(values.argmax())] - 1]))

    def _precisions(self, bound: bool) -> Doubles:
        """The precision down to each edge, or the lower end of its interval; −∞: too few judged candidates reach it."""
        fewest = int(np.clip(SHARE_ABOVE * len(self.judged), *FEWEST_ABOVE))
        if len(self.judged) < fewest:
            return np.full(len(self.edges) - 1, -np.inf)
        shares = (self.matches[:, 1:] + self.confirmed) / np.maximum(self.rest[1:] + self.confirmed, 1)
        values = np.quantile(shares, (1 - self.confidence) / 2, axis=0) if bound else shares.mean(0)
        return np.where(self.edges[1:] > self.judged[fewest - 1], values, -np.inf)

    def needed(self, threshold: float, width: float, figure: Literal["precision", "recall"] = "precision") -> int:
        """About how many more labels make the interval at the threshold so narrow: widths fall as 1 / √labels."""
        point = self.at(threshold)
        interval = point.precision_interval if figure == "precision" else point.recall_interval
        if interval is None or interval[1] - interval[0] <= width:
            return 0
        more = len(self.judged) * (((interval[1] - interval[0]) / width) ** 2 - 1)
        return min(int(np.ceil(more)), len(self.similarity) - len(self.judged))

    def _point(self, threshold: float) -> Point:
        above = len(self.similarity) - int(np.searchsorted(self.similarity[::-1], np.float32(threshold)))
        rest = above - int(np.searchsorted(self.judged, above))
        lower = min(int(np.searchsorted(self.edges, above, side="right")) - 1, len(self.edges) - 2)
        share = (rest - self.rest[lower]) / max(self.rest[lower + 1] - self.rest[lower], 1)
        found = self.matches[:, lower] + share * (self.matches[:, lower + 1] - self.matches[:, lower])
        false, false_interval = self._summary(rest - found)
        passing = rest + self.confirmed
        precision = self._summary((found + self.confirmed) / passing) if passing else (None, None)
        every = np.maximum(self.matches[:, -1], found) + self.confirmed
        some = every > 0
        recall = self._summary((found[some] + self.confirmed) / every[some]) if some.any() else (None, None)
        return Point(threshold, passing, false, false_interval, *precision, *recall)

    def _summary(self, values: Doubles) -> tuple[float, tuple[float, float]]:
        tail = (1 - self.confidence) / 2
        low, high = np.quantile(values, [tail, 1 - tail]).tolist()
        mean = float(values.mean())
        return mean, (min(low, mean), max(high, mean))


def estimate(
    similarity: Floats,
    judged: Integers,
    labels: npt.ArrayLike,
    *,
    unseen: Floats | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> Estimate:
    """Learns the number of matches above every threshold from the labels of some candidates.

    Args:
        similarity: (P,) of all candidates, from high to low.
        judged: (N,) distinct indices of the candidates with a label.
        labels: (N,) 1 for a match, 0 for no match.
        unseen: (N,) similarities of the judged candidates that their labels did not change, if `similarity` was
            adjusted to labels (`adjusting.py`). The curve learns from these.
    """
    rng = np.random.default_rng(seed)
    bins = Bins(similarity)
    right, wrong = bins.counts(judged, labels)
    trust = TRUST if unseen is None else ADJUSTED_TRUST
    places = judged if unseen is None else np.minimum(np.searchsorted(-similarity, -unseen), len(similarity) - 1)
    chances = sigmoid(
        logits_of(bins.parts, posterior(bins, *bins.counts(places, labels), rng, trust=trust))
    )  # (DRAWS, B)
    rest = bins.sizes - right - wrong
    matches = rng.binomial(rest, chances)
    sums = np.concatenate([np.zeros((len(matches), 1)), np.cumsum(matches, 1)], 1)
    rows, sizes = np.sort(np.asarray(judged, np.intp)), np.append(0, np.cumsum(rest))
    return Estimate(similarity, rows, int(right.sum()), confidence, bins.edges, sizes, sums, chances)
