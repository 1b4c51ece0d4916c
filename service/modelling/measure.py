"""Measures of a vector space, before and after calibration."""

from typing import Any

import numpy as np
import numpy.typing as npt

from service.core.reference import ReferenceDistribution
from service.core.similarity import cosine, normalized

Vectors = npt.NDArray[np.float32]

PAIRS = 200_000  # random pairs of a reference; at least 1e5 are asked for
SPECTRUM = 64  # singular values reported
NOMINAL_RATES = (0.1, 0.05, 0.01)


def random_pairs(count: int, pairs: int, rng: np.random.Generator) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Distinct pairs of distinct sentences: all of them where there are no more than `pairs`."""
    possible = count * (count - 1) // 2
    if possible <= pairs:
        left, right = np.triu_indices(count, 1)
        return left, right
    left = rng.integers(0, count, pairs)
    right = (left + rng.integers(1, count, pairs)) % count
    return left, right


def random_similarities(latents: Vectors, rng: np.random.Generator, pairs: int = PAIRS) -> npt.NDArray[np.float64]:
    """Cosines of random pairs of rows, rising."""
    left, right = random_pairs(len(latents), pairs, rng)
    found = [cosine(latents[left[i : i + 16384]], latents[right[i : i + 16384]]) for i in range(0, len(left), 16384)]
    return np.sort(np.concatenate(found).astype(np.float64))


def reference(similarities: npt.NDArray[np.float64]) -> ReferenceDistribution:
    """Quantile knots of sorted similarities, denser towards the top, where thresholds lie."""
    pairs = len(similarities)
    body = np.linspace(0, 0.99, 400)
    tail = 1 - np.logspace(-2, -np.log10(pairs), 200)
    probabilities = np.concatenate([body, tail[1:], [1.0]])
    knots = np.quantile(similarities, probabilities)
    knots, last = np.unique(knots[::-1], return_index=True)  # of equal knots the highest probability
    return ReferenceDistribution(knots, probabilities[::-1][last], pairs)


def threshold_error(percentiles: npt.NDArray[np.float64]) -> float:
    """Mean |ln(measured / nominal)| of the false-match rate, for percentiles of random pairs."""
    floor = 1 / len(percentiles)
    measured = [max(floor, float((percentiles >= 1 - rate).mean())) for rate in NOMINAL_RATES]
    return float(np.mean(np.abs(np.log(np.array(measured) / np.array(NOMINAL_RATES)))))


def space(latents: Vectors, rng: np.random.Generator) -> dict[str, Any]:
    """How crowded a space is: mean random cosine, effective rank (Roy & Vetterli, 2007), singular spectrum.

    The spectrum is of the unit vectors, not centred, relative to the largest value.
    """
    sample = latents[rng.permutation(len(latents))[:5000]]
    unit = normalized(sample)
    singular = np.linalg.svd(unit, compute_uv=False).astype(np.float64)
    share = singular / singular.sum()
    share = share[share > 0]
    return {
        "mean_random_cosine": float(np.square(unit.mean(0, dtype=np.float64)).sum()),
        "effective_rank": float(np.exp(-(share * np.log(share)).sum())),
        "singular_spectrum": [round(float(v), 6) for v in singular[:SPECTRUM] / singular[0]],
    }
