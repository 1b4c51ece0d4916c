"""Builds a domain's reference distribution from the same text that the map is fitted to.

A map makes the sentences that it was fitted to less similar to each other. So thresholds from pairs of these sentences
would be too low: a nominal false-match rate of 1 % would in fact be 1.2 % with the method tempered, and 2 % with the
method whitening (docs/decisions/scale.md). To avoid this, the sentences are divided into folds. The pairs within each
fold are scored by a map that was fitted to the other folds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from isosim.arrays import Doubles, Rows, Vectors
from isosim.scoring.reference import COUNTED, ROUNDING, ReferenceDistribution, exceedance, fisher_z
from isosim.scoring.similarity import normalized

# Largest number of sampled pairs. 2,000 sentences form about this many pairs. For a threshold with a false-match rate
# of 1 %, 100,000 pairs suffice.
MOST_PAIRS = 2_000_000
FEWEST_SENTENCES = 20
KNOTS = 65  # number of knots; rates from 0.002 have errors of at most 0.6 %, and 129 knots are no better
FIRST_RATE = 1 - 1e-4
LEVELS = np.array([1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5])
BOOTSTRAPS = 200
CONFIDENCE = 0.95
TAIL_LIMIT = np.log(2)  # if the fitted tail's log error exceeds this, an exponential tail is tried
# Pairs of equal similarity count as a tie if they are at least this share of the pairs that score as high or higher,
# for example 50 of 1,000. Smaller ties are ignored: each of them changes the false-match rate at its similarity by less
# than 5 %.
TIE_SHARE = 0.05
RANKS = 1000  # number of ranks checked for ties; with 2,000,000 pairs, neighbouring ranks differ by 1.5 %
# If there are ties, the tail also gets knots. At each knot, the false-match rate is one of these shares of the rate at
# the beginning of the tail.
TAIL_KNOTS = np.logspace(0, -8, 33)[1:]
# Smallest difference between the logits of neighbouring knots. It changes a rate by less than 1e-7 of the rate.
FALL = 1e-9


@dataclass(frozen=True)
class Pairs:
    """Cosines (P,) of random pairs, and the indices (P,) of their two sentences, from 0 to `sentences` − 1."""

    similarities: npt.NDArray[np.float32]
    left: Rows
    right: Rows
    sentences: int


def folds(count: int, number: int, rng: np.random.Generator) -> list[Rows]:
    """Random partition of `count` sentences into `number` sorted parts whose sizes differ by at most one."""
    return [np.sort(part) for part in np.array_split(rng.permutation(count), number)]


def sample_pairs(groups: Sequence[tuple[Vectors, Rows]], rng: np.random.Generator, most: int = MOST_PAIRS) -> Pairs:
    """Draws pairs within each group. A group consists of latents (N, D) and the indices of their sentences (N,).

    Takes all pairs if there are at most `most`. Otherwise, the sentences of a group are arranged in a circle in random
    order, because neighbouring sentences in a file are often related. Then random distances are drawn. With the
    distance 2, each sentence is paired with the second sentence after it. So every sentence of the group occurs equally
    often (incomplete U-statistic; Blom, 1976).
    """
    possible = sum(len(x) * (len(x) - 1) // 2 for x, _ in groups)
    similarities: list[npt.NDArray[np.float32]] = []
    left: list[Rows] = []
    right: list[Rows] = []
    for latents, numbers in groups:
        count = len(latents)
        if count < 2:
            continue
        unit = normalized(latents)
        if possible <= most:
            i, j = np.triu_indices(count, 1)
            similarities.append((unit @ unit.T)[i, j])
            left.append(numbers[i])
            right.append(numbers[j])
            continue
        order = rng.permutation(count)
        unit, shuffled = unit[order], numbers[order]
        shifts = max(1, round(most * (count - 1) / 2 / possible))
        for shift in rng.permutation((count - 1) // 2)[:shifts] + 1:
            similarities.append(np.einsum("nd,nd->n", unit, np.roll(unit, -shift, 0)))
            left.append(shuffled)
            right.append(np.roll(shuffled, -shift))
    total = max(int(numbers.max()) for _, numbers in groups) + 1
    return Pairs(np.concatenate(similarities), np.concatenate(left), np.concatenate(right), total)


def pareto(excess: Doubles, weights: Doubles | None = None) -> tuple[float, float]:
    """Shape and scale of a generalized Pareto distribution.

    Uses probability-weighted moments (Hosking & Wallis, 1987, eq. 2). The shape is at most 0.9. A negative shape is
    replaced by 0 (exponential): it would mean that no pair exceeds a certain similarity, and a sample cannot show this.

    Args:
        excess: (M,) values of at least 0.
    """
    order = np.argsort(excess)
    y = excess[order]
    w = np.ones(len(y)) if weights is None else weights[order]
    total = w.sum()
    below = (np.cumsum(w) - 0.5 * w) / total
    mean = float((w * y).sum() / total)
    weighted = float((w * y * (1 - below)).sum() / total)
    spread = mean - 2 * weighted
    shape = 0.0 if spread <= 0 else min(2 - mean / spread, 0.9)
    mean = max(mean, 1e-9)
    return (0.0, mean) if shape <= 0 else (shape, mean * (1 - shape))


def fit_tail(excess: Doubles) -> tuple[float, float, float]:
    """Shape and scale of a tail, and its largest error |ln(fitted rate / counted rate)|.

    The error is measured only at values that about 30 pairs or more exceed.
    excess: (M,) distance of each pair from the beginning of the tail, descending.
    """
    counted = (np.arange(1, len(excess) + 1) - 0.5) / len(excess)
    enough = counted * len(excess) >= 30

    def error(shape: float, scale: float) -> float:
        fitted = np.maximum(exceedance(excess[enough], shape, scale), 1e-300)
        return float(np.abs(np.log(fitted / counted[enough])).max()) if enough.any() else 0.0

    shape, scale = pareto(excess)
    exponential = max(float(excess.mean()), 1e-9)
    if error(shape, scale) > TAIL_LIMIT and error(0.0, exponential) < error(shape, scale):
        shape, scale = 0.0, exponential
    return shape, scale, error(shape, scale)


@dataclass(frozen=True)
class Tie:
    """Pairs whose similarities are equal except for rounding errors."""

    low: float
    high: float
    pairs: int  # number of pairs


def find_ties(similarities: npt.NDArray[np.floating]) -> list[Tie]:
    """Finds the ties, in ascending order of similarity.

    A tie has at least 10 pairs, and at least 5 % of all pairs at or above its similarity.
    """
    rising = np.sort(similarities)
    count = len(rising)
    # Every tie extends over many ranks, so at least one of these `ranks` lies in the tie.
    ranks = np.unique(np.geomspace(1, count, RANKS).astype(np.intp))
    ties: list[Tie] = []
    for value in rising[count - ranks]:
        if ties and value >= ties[-1].low:
            continue
        first, last = np.searchsorted(rising, [value - ROUNDING, value + ROUNDING])
        if ties:
            last = min(last, np.searchsorted(rising, ties[-1].low))
        if last - first >= max(COUNTED, TIE_SHARE * (count - first)):
            ties.append(Tie(float(rising[first]), float(rising[last - 1]), int(last - first)))
    return ties[::-1]


def build(pairs: Pairs, rng: np.random.Generator, *, intervals: bool = True) -> ReferenceDistribution:
    """Builds a reference: knots at quantiles, a fitted tail beyond them, and bootstrap intervals of the thresholds.

    Knots and tail are fitted to the pairs that belong to no tie. The share of each tie is then added to the rates at
    and below its similarity.

    Raises:
        ValueError: fewer than 20 sentences.
    """
    if pairs.sentences < FEWEST_SENTENCES:
        raise ValueError(f"a reference needs at least {FEWEST_SENTENCES} sentences; found {pairs.sentences}")
    similarities = pairs.similarities.astype(np.float64)
    count = len(similarities)
    ties = find_ties(similarities)
    tied = np.zeros(count, bool)
    for tie in ties:
        tied |= (similarities >= tie.low) & (similarities <= tie.high)
    reference = continuous(similarities if not ties else similarities[~tied], pairs)
    if ties:
        reference = with_ties(reference, ties, 1 - float(tied.mean()))
    smallest = reference.smallest_rate

    # The intervals depend only on the most similar pairs, so the other pairs are left out.
    kept = int(min(count, max((0.12 if count < 1_000_000 else 0.035) * count, 4000, 1.2 * smallest * count)))
    top = np.argpartition(similarities, count - kept)[count - kept :]
    top = top[np.argsort(-similarities[top], kind="stable")]
    levels = LEVELS[(LEVELS * count < 0.9 * kept) & (1.01 * smallest < LEVELS)]
    if smallest and smallest < 1:
        levels = np.append(levels, smallest)
    unknown = np.full(len(levels), np.nan)
    reference = replace(reference, levels=levels, low=unknown, high=unknown, relative_error=unknown)
    return with_intervals(reference, pairs, top, rng) if intervals and len(levels) else reference


def continuous(similarities: Doubles, pairs: Pairs) -> ReferenceDistribution:
    """Reference with knots and a tail that are fitted to similarities (P,) without ties.

    Only the numbers of sentences and pairs are taken from `pairs`, which includes the ties.
    """
    none = np.empty(0)
    count = len(similarities)
    if not count:
        knots, logits = np.array([-1.0 - 1e-3, 1.0]), np.array([np.log(1e9), np.log(1e8)])
        return ReferenceDistribution(
            knots, logits, 0.0, 1e-3, 0.0, none, none, none, none, pairs.sentences, len(pairs.similarities)
        )
    join_rate = float(np.clip(200 / count, 1e-4, 0.5 if count < 400 else 1e-2 if count >= 20_000 else 200 / count))
    logit_first, logit_join = (np.log(rate / (1 - rate)) for rate in (FIRST_RATE, join_rate))
    logits = np.linspace(logit_first, logit_join, KNOTS)
    knots = np.quantile(similarities, 1 / (1 + np.exp(logits)))
    lowest = min(float(similarities.min()), float(knots[0]) - 1e-6)
    knots = np.concatenate([[-1.0 - 1e-3, lowest], knots])
    logits = np.concatenate([[np.log(1e9), logit_first + 1.0], logits])
    apart = np.concatenate([np.diff(knots) > 1e-9, [True]])
    knots, logits = knots[apart], logits[apart]

    join = float(fisher_z(knots[-1]))
    z = fisher_z(np.sort(similarities[similarities >= knots[-1]])[::-1])
    above = z > join
    shape, scale, error = (0.0, 1e-3, 0.0) if not above.any() else fit_tail(z[above] - join)
    return ReferenceDistribution(
        knots, logits, shape, scale, error, none, none, none, none, pairs.sentences, len(pairs.similarities)
    )


def with_ties(reference: ReferenceDistribution, ties: Sequence[Tie], share: float) -> ReferenceDistribution:
    """Adds ties to a reference of the untied pairs. `share` is the share of untied pairs among all pairs."""
    join = float(fisher_z(reference.join))
    beyond = [reference.threshold(float(reference.join_rate * part)) for part in TAIL_KNOTS]
    low = np.array([tie.low for tie in ties]) - ROUNDING
    high = np.array([tie.high for tie in ties]) + ROUNDING
    rates_of_ties = np.array([tie.pairs for tie in ties]) / reference.pairs
    knots = np.unique(np.concatenate([reference.similarities, beyond, low, high, high + ROUNDING]))
    last = high[-1] if high[-1] >= 1 else max(high[-1] + ROUNDING, reference.join)
    inside = ((knots[:, None] > low) & (knots[:, None] < high)).any(1)
    knots = knots[(knots <= last) & ~inside]
    above = (high >= knots[:, None]) @ rates_of_ties
    rates = np.clip(share * reference.false_match_rate(knots) + above, 1e-12, 1 - FALL)
    logits = np.log(rates) - np.log1p(-rates)
    logits = np.minimum.accumulate(logits) - FALL * np.arange(len(logits))
    return replace(
        reference,
        similarities=knots,
        logits=logits,
        # The tail begins at the last knot. A tie inside the tail becomes the last knot, so the tail begins higher than
        # before. Its shape stays the same, and its scale grows by shape · distance (Coles, 2001, 4.2.1).
        scale=reference.scale + reference.shape * max(0.0, float(fisher_z(last)) - join),
        tied=np.array([(tie.low + tie.high) / 2 for tie in ties]),
        tied_rates=rates_of_ties,
    )


def with_intervals(
    reference: ReferenceDistribution, pairs: Pairs, top: Rows, rng: np.random.Generator
) -> ReferenceDistribution:
    """Adds intervals from a bootstrap over sentences.

    In each draw, a pair's weight is the product of the numbers of times that its two sentences were drawn (Owen, 2007).
    This bootstrap overstates the variance of a rate. It counts one part of the variance, v = rate · (1 − rate) / pairs,
    three times, because the weights have a variance of about 3. So 2 v is subtracted, and the intervals become narrower
    accordingly.

    Args:
        top: indices of the most similar pairs, in descending order of similarity.
    """
    similarities = pairs.similarities[top].astype(np.float64)
    z, left, right = fisher_z(similarities), pairs.left[top], pairs.right[top]
    levels, count = reference.levels, reference.pairs
    centres = np.array([reference.threshold(float(level)) for level in levels])
    position = np.searchsorted(-similarities, -centres, side="right")
    thresholds = np.empty((BOOTSTRAPS, len(levels)))
    rates = np.empty((BOOTSTRAPS, len(levels)))
    for draw in range(BOOTSTRAPS):
        weights = rng.multinomial(pairs.sentences, np.full(pairs.sentences, 1 / pairs.sentences)).astype(np.float64)
        weight = weights[left] * weights[right]
        rate = np.cumsum(weight) / count
        rates[draw] = np.where(position > 0, rate[np.maximum(position - 1, 0)], 0.0)
        thresholds[draw] = similarities[np.minimum(np.searchsorted(rate, levels), len(top) - 1)]
        join = min(int(np.searchsorted(rate, reference.join_rate)), len(top) - 1)
        excess, drawn = z[:join] - z[join], weight[:join]
        if (drawn > 0).sum() >= 20:
            shape, scale = pareto(excess[drawn > 0], drawn[drawn > 0])
            share = levels[levels < reference.join_rate] / reference.join_rate
            beyond = -scale * np.log(share) if shape == 0 else scale / shape * (share**-shape - 1)
            thresholds[draw, levels < reference.join_rate] = np.tanh(z[join] + beyond)
    between_pairs = levels * (1 - levels) / count
    variance = rates.var(0)
    corrected = np.maximum(variance - 2 * between_pairs, between_pairs)
    shrink = np.sqrt(np.minimum(corrected / np.maximum(variance, 1e-300), 1.0))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(thresholds, [tail, 1 - tail], axis=0)
    error = np.where(levels * count >= 10, np.sqrt(corrected) / levels, np.nan)
    return replace(
        reference,
        low=np.minimum(centres + shrink * (low - centres), centres),
        high=np.maximum(centres + shrink * (high - centres), centres),
        relative_error=error,
    )
