"""Vectors of made-up domains, and what calibrations fit to them."""

import numpy as np

from isosim.arrays import Integers, Vectors
from isosim.fitting.out_of_domain import (
    fit,
)
from isosim.fitting.reference import Pairs, build, continuous, sample_pairs
from isosim.scoring.out_of_domain import DomainTest
from isosim.scoring.reference import ReferenceDistribution

COUNT = 744


def fitted(count: int, dim: int, *, probe: bool = False, seed: int = 0) -> DomainTest:
    x, tokens = texts(count, dim, seed)
    return fit(x, tokens, salad(1000, dim, seed + 1000) if probe else None, np.random.default_rng(seed))


def without_ties(x: Vectors) -> ReferenceDistribution:
    pairs = pairs_of(x)
    return continuous(pairs.similarities.astype(np.float64), pairs)


def reference_of(x: Vectors, *, intervals: bool = False) -> ReferenceDistribution:
    return build(pairs_of(x), np.random.default_rng(0), intervals=intervals)


def texts_with(*shares: float, count: int = COUNT, dim: int = 48, seed: int = 0) -> Vectors:
    """Vectors, the first so many of them the same but for rounding; a share for each such group."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, dim)) + 0.3
    start = 0
    for share in shares:
        stop = start + round(share * count)
        x[start:stop] = x[start]
        start = stop
    return (x * (1 + 1e-7 * rng.standard_normal(x.shape))).astype(np.float32)


def pairs_of(x: Vectors) -> Pairs:
    return sample_pairs([(x, np.arange(len(x)))], np.random.default_rng(0))


def texts(count: int, dim: int, seed: int) -> tuple[Vectors, Integers]:
    """Vectors with a falling spectrum, smaller and less heavy-tailed the longer the text, as those of sentences."""
    rng = np.random.default_rng(seed)
    tokens = np.clip(rng.lognormal(3, 0.5, count), 4, 256).astype(np.intp)
    size = np.exp(rng.standard_normal(count) * 2 / np.sqrt(tokens)) * tokens**-0.25
    spectrum = np.geomspace(1, 0.02, dim)
    x = 0.5 + rng.standard_normal((count, dim)) * spectrum * size[:, None]
    return x.astype(np.float32), tokens


def salad(count: int, dim: int, seed: int) -> Vectors:
    """Texts moved a little in every coordinate: no distance or band shows it, all coordinates together do."""
    x, _ = texts(count, dim, seed)
    moved = np.where(np.arange(dim) % 2 == 0, 0.4, -0.4) * np.geomspace(1, 0.02, dim)
    return (x + moved).astype(np.float32)
