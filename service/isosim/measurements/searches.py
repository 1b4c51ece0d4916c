"""Measures thresholds for searches: how many searches in held-out text have a wrong match."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from isosim.arrays import Vectors
from isosim.errors import InvalidInput
from isosim.fitting import false_hits, gate, reference
from isosim.fitting.job import cross_fitted
from isosim.fitting.methods import fit
from isosim.measurements.sources import SOURCES, Encoder, Progress, sample
from isosim.scoring.similarity import normalized

NOMINAL = 0.01
FITTED_ON = {source: 2500 if source == "SICK" else 5000 for source in SOURCES}
GALLERIES = (100, 1000, 10_000)
LARGEST_OTHERS = 11_500  # largest number of held-out sentences: 10,000 entries and 1,500 queries
QUERIES = 3000  # largest number of queries per round
SIMILARITIES = 10_000_000  # `searched` computes about this many similarities, but makes at least 4 rounds
# Bounds of the mean rate over all splits, as multiples of the nominal rate. Key: whether the threshold is extrapolated.
MEAN_BARS = {True: (0.5, 2.0), False: (0.85, 1.15)}
# Bounds of one split's rate, as multiples of the nominal rate; minimum share of splits with a rate within these bounds.
SPLIT_BARS, SPLITS_NEEDED = (0.6, 1.6), 0.85


@dataclass(frozen=True)
class SearchResult:
    """Results of a source with `gallery` entries. `rates`: for each split, the share of searches with a wrong match."""

    source: str
    gallery: int
    sentences: int
    extrapolated: bool
    rates: list[float]

    @property
    def mean(self) -> float:
        return float(np.mean(self.rates))

    @property
    def share_within(self) -> float:
        low, high = SPLIT_BARS
        return float(np.mean([low <= rate / NOMINAL <= high for rate in self.rates]))

    @property
    def kept(self) -> bool:
        """Whether the mean rate lies within `MEAN_BARS`, and the rates of enough splits lie within `SPLIT_BARS`.

        `SPLIT_BARS` is not checked if the threshold is extrapolated.
        """
        low, high = MEAN_BARS[self.extrapolated]
        return low <= self.mean / NOMINAL <= high and (self.extrapolated or self.share_within >= SPLITS_NEEDED)


def measure(
    folder: Path, encode: Encoder, sources: Sequence[str], splits: int, progress: Progress
) -> list[SearchResult]:
    """In random splits, calibrates each source from some of its sentences, and searches among its other sentences."""
    results = []
    for done, source in enumerate(sources):
        fitted_on = FITTED_ON[source]
        texts = sample(folder, source, fitted_on + LARGEST_OTHERS, least=fitted_on + GALLERIES[1])
        vectors = encode(texts, lambda share, source=source: progress(source, share))[0]  # type: ignore[misc]
        galleries = [size for size in GALLERIES if len(texts) - fitted_on > size]
        rates: dict[int, list[float]] = {size: [] for size in galleries}
        beyond: dict[int, bool] = {}
        for split in range(splits):
            rng = np.random.default_rng(split)
            order = rng.permutation(len(texts))
            mine, others = vectors[order[:fitted_on]], vectors[order[fitted_on:]]
            chosen = gate.decide([texts[row] for row in order[:fitted_on]], mine, encode.vectors).method
            fitted = fit(chosen, mine, mine[:0], split)
            latents = cross_fitted(fitted, mine, rng, lambda _: None)
            scale = reference.build(reference.sample_pairs(latents, rng), rng, intervals=False)
            table = false_hits.build(latents, scale, rng)
            if table is None:
                raise InvalidInput(f"{source}: {fitted_on} calibration sentences are too few to count wrong matches")
            unseen = normalized(fitted(others))
            for size in galleries:
                level = table.level(NOMINAL, size)
                beyond[size] = level.extrapolated
                rates[size].append(searched(unseen, size, scale.threshold(level.rate), rng))
            progress(source, (done + (split + 1) / splits) / len(sources))
        results += [SearchResult(source, size, fitted_on, beyond[size], rates[size]) for size in galleries]
    return results


def searched(unit: Vectors, gallery: int, threshold: float, rng: np.random.Generator) -> float:
    """Share of queries whose best match reaches the threshold: a mean over random choices of queries and entries."""
    queries = min(QUERIES, len(unit) - gallery)
    found = []
    for _ in range(max(SIMILARITIES // (queries * gallery), 4)):
        order = rng.permutation(len(unit))
        entries, asked = unit[order[:gallery]], unit[order[gallery : gallery + queries]]
        found.append(float(((asked @ entries.T).max(1) >= threshold).mean()))
    return float(np.mean(found))
