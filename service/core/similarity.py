"""Scores of sentence pairs."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from service.core.calibration import Calibration, Matrix
from service.core.domain_test import Judgement, level_energies

Rows = npt.NDArray[np.intp]
Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Scores:
    """Columns, one entry a pair; the domain's judgement has one a text."""

    cosine: npt.NDArray[np.float32]  # of the frozen encoder's vectors
    similarity: npt.NDArray[np.float32]  # of the calibrated latents
    percentile: Doubles | None  # None: the domain has no reference
    probability: Doubles | None  # None: the domain was given no labels
    judgement: Judgement | None  # None: the domain has no test of what belongs to it


def cosine(a: Matrix, b: Matrix) -> npt.NDArray[np.float32]:
    """Row by row, in float64, so that a pair's score does not depend on the pairs beside it. (N, D)² -> (N,)"""
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    dots = np.einsum("nd,nd->n", a64, b64)
    norms = np.sqrt(np.einsum("nd,nd->n", a64, a64) * np.einsum("nd,nd->n", b64, b64))
    scores = np.divide(dots, norms, out=np.zeros_like(dots), where=norms > 0)
    clipped: npt.NDArray[np.float32] = np.clip(scores, -1.0, 1.0).astype(np.float32)
    return clipped


def score(calibration: Calibration, pooled: Matrix, tokens: Rows, left: Rows, right: Rows) -> Scores:
    """Scores the pairs (left[i], right[i]) of rows of `pooled` (N, D), whose texts have `tokens` (N,)."""
    model = calibration.model
    latents = calibration.latents(pooled)
    raw = cosine(pooled[left], pooled[right])
    similarity = raw if calibration.transform is None else cosine(latents[left], latents[right])
    rates = model.false_match_rates(latents, left, right, similarity)
    labelled = None if model.probability is None or rates is None else model.probability.probability(rates)
    energies = level_energies(latents, calibration.levels) if calibration.levels else None
    judgement = None if model.domain_test is None else model.domain_test.judge(pooled, tokens, energies)
    return Scores(raw, similarity, None if rates is None else 1.0 - rates, labelled, judgement)


def normalized(vectors: Matrix) -> Matrix:
    """Rows at unit length; a zero row stays zero."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: Matrix = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
    return unit
