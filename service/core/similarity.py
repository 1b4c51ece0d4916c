"""Scores of sentence pairs."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from service.core.calibration import Calibration, Matrix


@dataclass(frozen=True)
class Scores:
    """Columns, one entry a pair."""

    cosine: npt.NDArray[np.float32]  # of the frozen encoder's vectors
    similarity: npt.NDArray[np.float32]  # of the calibrated latents
    percentile: npt.NDArray[np.float64] | None  # None: the domain has no reference


def cosine(a: Matrix, b: Matrix) -> npt.NDArray[np.float32]:
    """Row by row, in float64, so that a pair's score does not depend on the pairs beside it. (N, D)² -> (N,)"""
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    dots = np.einsum("nd,nd->n", a64, b64)
    norms = np.sqrt(np.einsum("nd,nd->n", a64, a64) * np.einsum("nd,nd->n", b64, b64))
    scores = np.divide(dots, norms, out=np.zeros_like(dots), where=norms > 0)
    clipped: npt.NDArray[np.float32] = np.clip(scores, -1.0, 1.0).astype(np.float32)
    return clipped


def score(calibration: Calibration, pooled: Matrix, left: npt.NDArray[np.intp], right: npt.NDArray[np.intp]) -> Scores:
    """Scores the pairs (left[i], right[i]) of rows of `pooled` (N, D)."""
    raw = cosine(pooled[left], pooled[right])
    if calibration.transform is None:
        similarity = raw
    else:
        latents = calibration.latents(pooled)
        similarity = cosine(latents[left], latents[right])
    reference = calibration.reference
    return Scores(raw, similarity, None if reference is None else reference.percentile(similarity))


def normalized(vectors: Matrix) -> Matrix:
    """Rows at unit length; a zero row stays zero."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: Matrix = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
    return unit
