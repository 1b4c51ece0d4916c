"""Measures how often the intervals of recall and precision contain the true value, on labelled question pairs."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from isosim.arrays import Doubles, Vectors
from isosim.fitting import gate, probability, reference
from isosim.fitting.job import cross_fitted
from isosim.fitting.methods import fit
from isosim.measurements.sources import Encoder, PairVectors, Progress, quora_pairs
from isosim.scoring.similarity import cosine

LABELS = (100, 1000)
PRECISIONS = (0.6, 0.7, 0.8, 0.9)
DOMAIN_SENTENCES = 2000
# Pairs with high scores are drawn more often, as if people labelled the top hits first: the pair with the lowest score
# has 0.2 times the chance of the pair with the highest score.
LEAST_CHANCE = 0.2
COVERAGE_BARS = (0.90, 0.97)  # lower and upper limit that are promised for `Coverage.covered`


@dataclass(frozen=True)
class Coverage:
    """How often intervals contain the true value, and their mean width. The true value is computed from all pairs."""

    figure: str  # "recall" or "precision" at the advised threshold
    labels: int  # number of labelled pairs
    weighted: bool  # True: pairs with high scores are drawn more often, and weights correct for this
    precision: float  # precision for which the threshold was advised
    draws: int  # number of draws that gave a threshold for this precision
    covered: float  # share of the intervals that contain the true value
    width: float

    @property
    def kept(self) -> bool:
        return COVERAGE_BARS[0] <= self.covered <= COVERAGE_BARS[1]


def measure(data: Path, encode: Encoder, draws: int, progress: Progress) -> list[Coverage]:
    """Learns probabilities from the labels of random pairs, and counts the intervals that contain the true value."""
    pairs = quora_pairs(data)
    quora = PairVectors.from_pairs(pairs, lambda texts: encode(texts, lambda done: progress("quora", done)))
    rng = np.random.default_rng(0)
    mine = rng.permutation(len(quora.texts))[:DOMAIN_SENTENCES]
    vectors = quora.vectors[mine]
    method = gate.decide([quora.texts[row] for row in mine], vectors, encode.vectors).method
    fitted = fit(method, vectors, vectors[:0], 0)
    latents = cross_fitted(fitted, vectors, rng, lambda _: None)
    scale = reference.build(reference.sample_pairs(latents, rng), rng, intervals=False)
    similarities = cosine(fitted(quora.left), fitted(quora.right))
    place = np.argsort(np.argsort(similarities)) / len(similarities)
    results = []
    for labels in LABELS:
        for chances in (np.ones(len(place)), LEAST_CHANCE + (1 - LEAST_CHANCE) * place):
            found: dict[tuple[str, float], list[tuple[bool, float]]] = {
                (figure, precision): [] for figure in ("recall", "precision") for precision in PRECISIONS
            }
            for draw in range(draws):
                progress(f"{labels} labels", draw / draws)
                seen = np.random.default_rng(draw).choice(len(place), labels, replace=False, p=chances / chances.sum())
                learnt, _ = probability.fit(similarities[seen], scale, pairs.gold[seen], draw, 1 / chances[seen])
                for precision in PRECISIONS:
                    at = np.flatnonzero(np.isclose(learnt.precisions, precision))
                    if not len(at):
                        continue
                    truths = true_shares(similarities, pairs.gold, float(learnt.similarities[at[0]]))
                    for figure, lows, highs in (
                        ("recall", learnt.recall_low, learnt.recall_high),
                        ("precision", learnt.precision_low, learnt.precision_high),
                    ):
                        low, high = float(lows[at[0]]), float(highs[at[0]])
                        found[figure, precision].append((low <= truths[figure] <= high, high - low))
            weighted = bool((chances != 1).any())
            for (figure, precision), one in found.items():
                covered, width = np.mean(one, axis=0).tolist() if one else (np.nan, np.nan)
                results.append(Coverage(figure, labels, weighted, precision, len(one), covered, width))
    return results


def true_shares(similarities: Vectors, labels: Doubles, threshold: float) -> dict[str, float]:
    """Recall and precision of all pairs at a threshold; at least one pair must reach it."""
    above = similarities >= threshold
    return {"recall": float(labels[above].sum() / labels.sum()), "precision": float(labels[above].mean())}
