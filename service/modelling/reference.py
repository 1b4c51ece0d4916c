"""Building a domain's reference distribution from its own text, so that all of it serves fit and reference.

Measured (docs/quality.md): pairs scored by a map that saw their sentences look too unlike each other, and a
nominal 1 % becomes 1.2 % (tempered) to 2 % (whitening). So a map is fitted once per fold without that fold, and
pairs are taken inside the fold.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from service.core.reference import ReferenceDistribution, exceedance, fisher_z
from service.core.similarity import normalized

Vectors = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]

MOST_PAIRS = 2_000_000  # all pairs of 2,000 sentences; 1e5 suffice at 1 %, the number of sentences limits the rest
FEWEST_SENTENCES = 20
KNOTS = 65  # off by at most 0.6 % of the rate down to 2e-3; 129 are no better
FIRST_RATE = 1 - 1e-4
LEVELS = np.array([1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5])
BOOTSTRAPS = 200
CONFIDENCE = 0.95
TAIL_LIMIT = np.log(2)  # a tail that is off by more inside the sample gives way to an exponential one


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


def build(pairs: Pairs, rng: np.random.Generator, *, intervals: bool = True) -> ReferenceDistribution:
    """Quantile knots as far as the sample reaches, a tail beyond, and bootstrap intervals of the thresholds.

    Raises:
        ValueError: fewer than 20 sentences.
    """
    if pairs.sentences < FEWEST_SENTENCES:
        raise ValueError(f"a reference needs at least {FEWEST_SENTENCES} sentences, here are {pairs.sentences}")
    found = pairs.similarities.astype(np.float64)
    count = len(found)
    join_rate = float(np.clip(200 / count, 1e-4, 0.5 if count < 400 else 1e-2 if count >= 20_000 else 200 / count))
    logit_first, logit_join = (np.log(rate / (1 - rate)) for rate in (FIRST_RATE, join_rate))
    logits = np.linspace(logit_first, logit_join, KNOTS)
    knots = np.quantile(found, 1 / (1 + np.exp(logits)))
    lowest = min(float(found.min()), float(knots[0]) - 1e-6)
    knots = np.concatenate([[-1.0 - 1e-3, lowest], knots])
    logits = np.concatenate([[np.log(1e9), logit_first + 1.0], logits])
    apart = np.concatenate([np.diff(knots) > 1e-9, [True]])
    knots, logits = knots[apart], logits[apart]

    # The highest pairs carry all that tail and intervals need.
    kept = int(min(count, max((0.12 if count < 1_000_000 else 0.035) * count, 4000)))
    top = np.argpartition(found, count - kept)[count - kept :]
    top = top[np.argsort(-found[top], kind="stable")]
    z = fisher_z(found[top])
    above = z > float(fisher_z(knots[-1]))
    shape, scale, error = (0.0, 1e-3, 0.0) if not above.any() else fit_tail(z[above] - float(fisher_z(knots[-1])))
    levels = LEVELS[LEVELS * count < 0.9 * kept]
    empty = np.full(len(levels), np.nan)
    found_so_far = ReferenceDistribution(
        knots, logits, shape, scale, error, levels, empty, empty, empty, pairs.sentences, count
    )
    return with_intervals(found_so_far, pairs, top, rng) if intervals else found_so_far


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
