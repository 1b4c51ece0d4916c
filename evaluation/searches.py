"""Thresholds for searches: how many searches in held-out text end with a wrong match."""

from collections.abc import Iterator

import numpy as np

from evaluation.calibrated import calibrated, random_splits, within
from evaluation.corpora import ALL, Bench, Row
from isosim.arrays import Vectors
from isosim.errors import InvalidInput
from isosim.fitting import false_hits
from isosim.scoring.similarity import normalized

NOMINAL = 0.01
GALLERIES = (100, 1000, 10_000)
FITTED_ON, FEW = 5000, {"SICK": 2500}  # number of calibration sentences; for sources with little text
LARGEST_OTHERS = 11_500  # largest number of held-out sentences: 10,000 entries and 1,500 queries
QUERIES = 3000  # largest number of queries per round
SIMILARITIES = 10_000_000  # `searched` computes about this many similarities, but makes at least 4 rounds
# Bounds of the mean rate over all splits, as multiples of the nominal rate. Key: whether the threshold is extrapolated.
MEAN_BARS = {True: (0.5, 2.0), False: (0.85, 1.15)}
# Bounds of one split's rate, and the share of splits that must lie within them unless the threshold is extrapolated.
SPLIT_BARS, SPLITS_NEEDED = (0.6, 1.6), 0.85


def searches(bench: Bench, sources: str = ALL, splits: int = 20) -> Iterator[Row]:
    """Share of held-out queries with a wrong match among held-out entries, at thresholds for 1 % of searches."""
    for source in sources.split(","):
        used = FEW.get(source, FITTED_ON)
        texts = bench.sample(source, used + LARGEST_OTHERS, least=used + GALLERIES[1])
        x = bench.encoder.vectors(texts)
        galleries = [size for size in GALLERIES if len(texts) - used > size]
        rates: dict[int, list[float]] = {size: [] for size in galleries}
        beyond: dict[int, bool] = {}
        for rng, mine, others in random_splits(len(texts), used, splits):
            made = calibrated([texts[row] for row in mine], x[mine], bench.encoder.vectors, rng)
            hits = false_hits.build(made.latents, made.scale, rng)
            if hits is None:
                raise InvalidInput(f"{source}: {used} calibration sentences are too few to count wrong matches")
            unseen = normalized(made.fitted(x[others]))
            for size in galleries:
                level = hits.level(NOMINAL, size)
                beyond[size] = level.extrapolated
                rates[size].append(searched(unseen, size, made.scale.threshold(level.rate), rng))
        for size in galleries:
            low, high = MEAN_BARS[beyond[size]]
            share = within([rate / NOMINAL for rate in rates[size]], SPLIT_BARS)
            mean = float(np.mean(rates[size])) / NOMINAL
            yield {
                "source": source, "sentences": used, "entries": size, "extrapolated": beyond[size],
                "wrong matches, %": [100 * rate for rate in rates[size]],
                "splits within {}–{}×, %".format(*SPLIT_BARS): 100 * share,
                "kept": low <= mean <= high and (beyond[size] or share >= SPLITS_NEEDED),
            }  # fmt: skip


def searched(unit: Vectors, gallery: int, threshold: float, rng: np.random.Generator) -> float:
    """Share of queries whose best match reaches the threshold: a mean over random choices of queries and entries."""
    queries = min(QUERIES, len(unit) - gallery)
    found = []
    for _ in range(max(SIMILARITIES // (queries * gallery), 4)):
        order = rng.permutation(len(unit))
        entries, asked = unit[order[:gallery]], unit[order[gallery : gallery + queries]]
        found.append(float(((asked @ entries.T).max(1) >= threshold).mean()))
    return float(np.mean(found))
