"""Compares the scores of the old and the new version on the most recent pairs of a domain."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from isosim.arrays import Doubles
from isosim.scoring.drift import Ring

WINDOW = 10_000  # number of pairs that are kept per domain, in four arrays of 80 kB
RATES = (0.01, 0.001)  # false-match rates whose thresholds are compared
FEWEST = 20  # smallest number of pairs for a rank correlation


@dataclass(frozen=True)
class ComparisonResult:
    """Statistics of the most recent pairs. A pair's percentile is 1 − its false-match rate."""

    pairs: int  # number of all pairs that were compared
    window: int  # number of the most recent pairs; the statistics below are computed from these pairs
    mean_difference: float | None  # mean absolute difference between a pair's percentiles in the two versions
    difference_95: float | None  # 95th percentile of the absolute differences
    changed_sides: Mapping[float, float] | None  # false-match rate -> share of pairs that match in one version only
    spearman: float | None  # rank correlation between the similarities of the two versions


@dataclass(frozen=True)
class Batch:
    """P pairs that both versions have scored. Each array (P,) has one number for each pair."""

    old_rates: Doubles
    new_rates: Doubles
    old_similarities: Doubles
    new_similarities: Doubles

    @property
    def differences(self) -> Doubles:
        """Absolute difference between each pair's percentiles in the two versions. (P,)"""
        differences: Doubles = np.abs(self.old_rates - self.new_rates)
        return differences

    def changed(self, rate: float) -> int:
        """Number of pairs that reach the threshold of this false-match rate in one version only."""
        return int(((self.old_rates <= rate) != (self.new_rates <= rate)).sum())


class Comparison:
    """The most recent pairs that both versions have scored. Only one thread may add pairs."""

    def __init__(self, versions: tuple[int, int]) -> None:
        self.versions = versions  # old, new
        self.pairs = 0
        self._rings = tuple(Ring(WINDOW) for _ in range(4))

    def observe(self, batch: Batch) -> None:
        self.pairs += len(batch.old_rates)
        columns = (batch.old_rates, batch.new_rates, batch.old_similarities, batch.new_similarities)
        for ring, values in zip(self._rings, columns, strict=True):
            ring.extend(values.tolist())

    def measure(self) -> ComparisonResult:
        batch = Batch(*(ring.values.copy() for ring in self._rings))
        count = len(batch.old_rates)
        if not count:
            return ComparisonResult(0, 0, None, None, None, None)
        differences = batch.differences
        return ComparisonResult(
            pairs=self.pairs,
            window=count,
            mean_difference=float(differences.mean()),
            difference_95=float(np.quantile(differences, 0.95)),
            changed_sides={rate: batch.changed(rate) / count for rate in RATES},
            spearman=spearman(batch.old_similarities, batch.new_similarities) if count >= FEWEST else None,
        )


def spearman(a: Doubles, b: Doubles) -> float | None:
    """Spearman's rank correlation (1904); ties get their mean rank. (N,), (N,) -> scalar

    None if all values of `a` or of `b` are equal.
    """
    x, y = ranks(a), ranks(b)
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / scale if scale > 0 else None


def ranks(values: Doubles) -> Doubles:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    mean_ranks: Doubles = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return mean_ranks
