"""Measures of a vector space, before and after calibration."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from service.core.similarity import normalized

Vectors = npt.NDArray[np.float32]

SPECTRUM = 64  # singular values reported
NOMINAL_RATES = (0.1, 0.05, 0.01)


def threshold_error(percentiles: npt.NDArray[np.float64], nominal: Sequence[float] = NOMINAL_RATES) -> float:
    """Mean |ln(measured / nominal)| of the false-match rate, for percentiles of random pairs."""
    floor = 1 / len(percentiles)
    measured = [max(floor, float((percentiles >= 1 - rate).mean())) for rate in nominal]
    return float(np.mean(np.abs(np.log(np.array(measured) / np.array(nominal)))))


def space(latents: Vectors, rng: np.random.Generator) -> dict[str, Any]:
    """How crowded a space is: mean random cosine, effective rank (Roy & Vetterli, 2007), singular spectrum.

    The spectrum is of the unit vectors, not centred, relative to the largest value.
    """
    sample = latents[rng.permutation(len(latents))[:5000]]
    unit = normalized(sample)
    unit64 = unit.astype(np.float64)
    gram = unit64.T @ unit64 if len(unit) >= unit.shape[1] else unit64 @ unit64.T  # an SVD takes ten times as long
    singular = np.sqrt(np.maximum(np.linalg.eigvalsh(gram)[::-1], 0.0))
    share = singular / singular.sum()
    share = share[share > 0]
    return {
        "mean_random_cosine": float(np.square(unit.mean(0, dtype=np.float64)).sum()),
        "effective_rank": float(np.exp(-(share * np.log(share)).sum())),
        "singular_spectrum": [round(float(v), 6) for v in singular[:SPECTRUM] / singular[0]],
    }
