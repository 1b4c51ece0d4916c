"""Measures whether a threshold converted to another encoder keeps its false-match rate, on held-out text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from isosim.arrays import Vectors
from isosim.fitting import gate, reference
from isosim.fitting.job import cross_fitted
from isosim.fitting.methods import fit
from isosim.fitting.recognition import Embed
from isosim.measurements.sources import SOURCES, Encoder, Progress, sample
from isosim.measurements.thresholds import MOST_TESTED, TESTED, false_match_rate
from isosim.scoring.equating import equate
from isosim.scoring.reference import ReferenceDistribution

RATES = (0.01, 0.001)
# Nominal rate -> bounds of (mean rate after the conversion) / (mean rate before the conversion). `thresholds.BARS` has
# the same bounds for one split.
BOUNDS = {0.01: (0.7, 1.4), 0.001: (0.5, 2.0)}


@dataclass(frozen=True)
class MovedThreshold:
    """Thresholds and their false-match rates on held-out pairs, one per split, for one source and nominal rate."""

    source: str
    nominal: float
    methods: tuple[str, str]  # methods of the old and of the new version
    similarity: list[float]  # threshold of the old version
    equivalent: list[float]  # converted threshold for the new version
    before: list[float]  # rate of the old version at its threshold
    after: list[float]  # rate of the new version at the converted threshold
    reused: list[float]  # rate of the new version at the old threshold

    @property
    def kept(self) -> bool:
        """Whether (mean rate after the conversion) / (mean rate before the conversion) lies within `BOUNDS`."""
        low, high = BOUNDS[self.nominal]
        return low <= float(np.mean(self.after)) / float(np.mean(self.before)) <= high


@dataclass(frozen=True)
class Version:
    """A calibration of one encoder on one split."""

    method: str
    scale: ReferenceDistribution
    others: Vectors  # latents of the held-out sentences


def measure(
    folder: Path,
    encoders: tuple[Encoder, Encoder],
    sources: Sequence[str] = tuple(SOURCES),
    *,
    sentences: int,
    splits: int,
    progress: Progress,
) -> list[MovedThreshold]:
    """Calibrates both encoders from the same sentences, and counts false matches among all pairs of other sentences."""
    thresholds = []
    for source in sources:
        texts = sample(folder, source, sentences + MOST_TESTED, least=2 * TESTED)
        vectors = [encode(texts, lambda done, source=source: progress(source, done))[0] for encode in encoders]  # type: ignore[misc]
        used = min(sentences, len(texts) - TESTED)
        thresholds += measure_source(source, texts, vectors, [one.vectors for one in encoders], used, splits)
    return thresholds


def measure_source(
    source: str, texts: list[str], vectors: list[Vectors], embed: list[Embed], used: int, splits: int
) -> list[MovedThreshold]:
    columns: Mapping[float, list[tuple[float, ...]]] = {rate: [] for rate in RATES}
    methods = ("", "")
    for split in range(splits):
        order = np.random.default_rng(split).permutation(len(texts))
        mine = [texts[row] for row in order[:used]]
        old, new = (
            version(mine, every[order[:used]], every[order[used:]], one, split)
            for every, one in zip(vectors, embed, strict=True)
        )
        methods = (old.method, new.method)
        for rate in RATES:
            carried = equate(old.scale, new.scale, old.scale.threshold(rate))
            counted = (
                false_match_rate(old.others, carried.similarity),
                false_match_rate(new.others, carried.equivalent),
                false_match_rate(new.others, carried.similarity),
            )
            columns[rate].append((carried.similarity, carried.equivalent, *counted))
    return [MovedThreshold(source, rate, methods, *map(list, zip(*columns[rate], strict=True))) for rate in RATES]


def version(texts: list[str], mine: Vectors, others: Vectors, embed: Embed, seed: int) -> Version:
    rng = np.random.default_rng(seed)
    method = gate.decide(texts, mine, embed).method
    fitted = fit(method, mine, mine[:0], seed)
    latents = cross_fitted(fitted, mine, rng, lambda _: None)
    # Also computes confidence intervals of the thresholds, which `equate` uses.
    scale = reference.build(reference.sample_pairs(latents, rng), rng)
    return Version(method.partition(":")[0], scale, fitted(others))
