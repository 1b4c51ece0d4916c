"""Are probabilities right on average? Reliability curves and calibration errors, with intervals."""

from typing import Any

import numpy as np
from scipy.stats import norm

from service.core.probability import Doubles

BINS = 15
PAIRS_A_BIN = 10
BOOTSTRAPS = 200
TAIL = 0.025  # of a 95 % interval


def equal_mass_bins(probabilities: Doubles, targets: Doubles, bins: int) -> tuple[Doubles, Doubles, Doubles]:
    """Mean probability, mean target and number of pairs of each bin, from the lowest to the highest. (N,) -> (B,)"""
    order = np.argsort(probabilities, kind="stable")
    starts = np.array([part[0] for part in np.array_split(np.arange(len(order)), bins)])
    counts = np.diff(np.append(starts, len(order))).astype(np.float64)
    predicted, observed = (np.add.reduceat(v[order], starts) / counts for v in (probabilities, targets))
    return predicted, observed, counts


def calibration_error(probabilities: Doubles, targets: Doubles, bins: int = BINS) -> float:
    """Expected calibration error over bins of equal mass (Nixon et al., 2019, section 3). (N,), (N,)"""
    predicted, observed, counts = equal_mass_bins(probabilities, targets, bins)
    return float(counts @ np.abs(predicted - observed) / len(targets))


def wilson(share: Doubles, counts: Doubles) -> tuple[Doubles, Doubles]:
    """95 % interval of a share of so many pairs (Wilson, 1927). (B,), (B,) -> (B,), (B,)"""
    z = float(norm.ppf(1 - TAIL))
    centre = (share + z**2 / (2 * counts)) / (1 + z**2 / counts)
    half = z * np.sqrt(share * (1 - share) / counts + z**2 / (4 * counts**2)) / (1 + z**2 / counts)
    return np.clip(centre - half, 0, share), np.clip(centre + half, share, 1)  # share outside by rounding alone


def if_right(probabilities: Doubles, targets: Doubles, graded: bool, rng: np.random.Generator) -> Doubles:
    """Targets (N,) as they could fall were the probabilities right: drawn from them, or with shuffled residuals."""
    if not graded:
        return (rng.random(len(targets)) < probabilities).astype(np.float64)
    residuals = targets - probabilities
    drawn: Doubles = probabilities + rng.permutation(residuals - residuals.mean())
    return drawn


def calibration_report(
    probabilities: Doubles, targets: Doubles, graded: bool, rng: np.random.Generator
) -> dict[str, Any]:
    """Reliability curve and calibration error of held-out probabilities (N,), in units of 0–1.

    The interval is the basic bootstrap's, held above 0: resampling raises the error once more by what the sample
    raised it, and percentile intervals of a calibrated map lay wholly above the truth (Davison & Hinkley, 1997, 5.2).
    """
    count = len(targets)
    bins = int(np.clip(count // PAIRS_A_BIN, 2, BINS))
    error = calibration_error(probabilities, targets, bins)
    rows = (rng.integers(0, count, count) for _ in range(BOOTSTRAPS))
    drawn = [calibration_error(probabilities[row], targets[row], bins) for row in rows]
    low, high = (max(0.0, 2 * error - float(np.quantile(drawn, level))) for level in (1 - TAIL, TAIL))
    perfect = [
        calibration_error(probabilities, if_right(probabilities, targets, graded, rng), bins) for _ in range(BOOTSTRAPS)
    ]
    predicted, observed, counts = equal_mass_bins(probabilities, targets, bins)
    if graded:
        square = equal_mass_bins(probabilities, targets**2, bins)[1]
        half = float(norm.ppf(1 - TAIL)) * np.sqrt(np.maximum(square - observed**2, 0) / np.maximum(counts - 1, 1))
        below, above = np.maximum(observed - half, 0), np.minimum(observed + half, 1)
    else:
        below, above = wilson(observed, counts)
    columns = {"predicted": predicted, "observed": observed, "low": below, "high": above}
    return {
        "ece": error,
        "ece_low": low,
        "ece_high": high,
        "ece_of_a_perfect_map": float(np.mean(perfect)),
        "reliability": [
            {**{name: float(column[number]) for name, column in columns.items()}, "pairs": int(counts[number])}
            for number in range(bins)
        ],
    }
