"""A calibration as a job makes it, and what all experiments count with it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from isosim.arrays import Rows, Vectors
from isosim.fitting import gate, reference
from isosim.fitting.job import cross_fitted
from isosim.fitting.methods import FittedMap, fit
from isosim.fitting.recognition import Embed
from isosim.scoring.method import Method
from isosim.scoring.reference import ReferenceDistribution
from isosim.scoring.similarity import normalized

AUTO = "auto"


@dataclass(frozen=True)
class Calibrated:
    """A map, the cross-fitted latents of the sentences it was fitted to, and the scale made from them."""

    fitted: FittedMap
    latents: Sequence[tuple[Vectors, Rows]]  # for each fold, latents and indices of its sentences
    scale: ReferenceDistribution

    @property
    def method(self) -> str:
        return self.fitted.method.name


def calibrated(
    texts: Sequence[str],
    x: Vectors,
    embed: Embed,
    rng: np.random.Generator,
    method: str = AUTO,
    *,
    intervals: bool = False,
) -> Calibrated:
    """Calibrates from sentences and their vectors (N, D), without labels. `intervals`: with those of thresholds."""
    chosen = gate.decide(texts, x, embed).method if method == AUTO else Method.parse(method)
    fitted = fit(chosen, x, x[:0], seed=0)
    latents = cross_fitted(fitted, x, rng, lambda _: None)
    return Calibrated(fitted, latents, reference.build(reference.sample_pairs(latents, rng), rng, intervals=intervals))


def random_splits(count: int, used: int, splits: int) -> Iterator[tuple[np.random.Generator, Rows, Rows]]:
    """Random splits of `count` rows into `used` rows and the others, each with a generator of its own."""
    for seed in range(splits):
        rng = np.random.default_rng(seed)
        order = rng.permutation(count)
        yield rng, order[:used], order[used:]


def false_match_rate(latents: Vectors, threshold: float) -> float:
    """Share of the pairs of different rows whose cosine is at least the threshold."""
    unit, count = normalized(latents), len(latents)
    reaching = sum(int((unit[i : i + 1000] @ unit.T >= threshold).sum()) for i in range(0, count, 1000))
    return (reaching - count) / (count * (count - 1))  # `- count` leaves out each row's pair with itself


def raw_threshold(x: Vectors, rate: float, seed: int = 0) -> float:
    """The cosine that the share `rate` of the pairs of rows of x (N, D) exceeds."""
    pairs = reference.sample_pairs([(x, np.arange(len(x)))], np.random.default_rng(seed))
    return float(np.quantile(pairs.similarities, 1 - rate))


def within(values: Sequence[float], bounds: tuple[float, float]) -> float:
    """Share of the values that lie within the bounds."""
    return float(np.mean([bounds[0] <= value <= bounds[1] for value in values]))
