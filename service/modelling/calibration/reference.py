"""Building a domain's reference distribution from its own text, so that all of it serves fit and reference.

Measured (docs/quality.md): pairs scored by a map that saw their sentences look too unlike each other, and a
nominal 1 % becomes 1.2 % (tempered) to 2 % (whitening). So a map is fitted once per fold without that fold, and
pairs are taken inside the fold.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from service.core.arrays import Doubles, Rows, Vectors
from service.core.scoring.reference import COUNTED, ROUNDING, ReferenceDistribution, exceedance, fisher_z
from service.core.scoring.similarity import normalized

MOST_PAIRS = 2_000_000  # all pairs of 2,000 sentences; 1e5 suffice at 1 %, the number of sentences limits the rest
FEWEST_SENTENCES = 20
KNOTS = 65  # off by at most 0.6 % of the rate down to 2e-3; 129 are no better
FIRST_RATE = 1 - 1e-4
LEVELS = np.array([1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5])
BOOTSTRAPS = 200
CONFIDENCE = 0.95
TAIL_LIMIT = np.log(2)  # a tail that is off by more inside the sample gives way to an exponential one
TIE_SHARE = 0.05  # of the pairs that score at least as much: smaller ties are within the error of the knots
RANKS = 1000  # at which ties are looked for: each holds 1.6 % more of 2,000,000 pairs than the one above it
TAIL_KNOTS = np.logspace(0, -8, 33)[1:]  # shares of the tail at which it is added to ties beyond its beginning
FALL = 1e-9  # by which logits of knots differ at least; no rate is off by more than 1e-7 of itself


@dataclass(frozen=True)
class Pairs:
    """Cosines (P,) of random pairs, and the sentences (P,) they are made of, numbered 0 … sentences − 1."""

    similarities: npt.NDArray[np.float32]
    left: Rows
    right: Rows
    sentences: int


def folds(count: int, number: int, rng: np.random.Generator) -> list[Rows]:
    """A random partition of `count` sentences into parts of equal size within one."""
    return [np.sort(part) for part in np.array_split(rng.permutation(count), number)]


def sample_pairs(groups: Sequence[tuple[Vectors, Rows]], rng: np.random.Generator, most: int = MOST_PAIRS) -> Pairs:
    """Pairs inside each group of latents (N, D) with their sentences' numbers (N,).

    All pairs where there are no more than `most`; else a balanced circulant design, in which every sentence
    stands equally often (incomplete U-statistic; Blom, 1976). Rows are permuted first: neighbours in a file are
    often related, and a small shift would find nothing but them.
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
    """Shape and scale of a generalized Pareto law by probability-weighted moments (Hosking & Wallis, 1987, eq. 2).

    excess: (M,) ≥ 0. The shape is held to at most 0.9. A negative one would end the tail below similarity 1, a rate
    of zero that no sample supports: such a tail becomes exponential (shape 0).
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
    """Shape, scale and largest |ln(fitted / counted)| of a tail, where at least 30 pairs lie above; (M,) falling."""
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
    """Pairs with the same similarity, but for rounding errors."""

    low: float
    high: float
    pairs: int


def find_ties(similarities: npt.NDArray[np.floating]) -> list[Tie]:
    """Ties that change rates, by rising similarity: of 10 pairs or more, and a twentieth of those at or above them."""
    rising = np.sort(similarities)
    count = len(rising)
    # Every tie so large holds one of these ranks.
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
    """Quantile knots as far as the sample reaches, a tail beyond, and bootstrap intervals of the thresholds.

    Pairs that tie are left out of both, and their share is added to the rates at and below them.

    Raises:
        ValueError: fewer than 20 sentences.
    """
    if pairs.sentences < FEWEST_SENTENCES:
        raise ValueError(f"a reference needs at least {FEWEST_SENTENCES} sentences, here are {pairs.sentences}")
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

    # The highest pairs carry all that intervals need.
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
    """Knots and tail of similarities (P,) without ties."""
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
    """A reference of the pairs that do not tie, which are `share` of all, with the others added to it."""
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
        # A Pareto tail above a higher beginning has the same shape (Coles, 2001, section 4.2.1).
        scale=reference.scale + reference.shape * max(0.0, float(fisher_z(last)) - join),
        tied=np.array([(tie.low + tie.high) / 2 for tie in ties]),
        tied_rates=rates_of_ties,
    )


def with_intervals(
    reference: ReferenceDistribution, pairs: Pairs, top: Rows, rng: np.random.Generator
) -> ReferenceDistribution:
    """Bootstrap over sentences, not pairs: a pair weighs the product of its ends' counts (Owen, 2007).

    Product weights count the variance between pairs three times; two of the three are taken off again.
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
