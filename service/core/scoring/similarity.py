"""Scores of sentence pairs."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from service.core.arrays import Doubles, Rows, Vectors
from service.core.encoding.embedding import Embeddings
from service.core.encoding.texts import PooledVector, Verdict
from service.core.scoring.calibration import Calibration
from service.core.scoring.out_of_domain import FALSE_ALARMS

TINY = float(np.finfo(np.float64).tiny)


class Scores(NamedTuple):
    """Columns with one entry per pair; `verdicts` has one per text."""

    cosine: npt.NDArray[np.float32]  # cosine of the frozen encoder's vectors
    similarity: npt.NDArray[np.float32]  # cosine of the calibrated latents
    percentile: Doubles | None  # None: the domain has no reference
    extrapolated: npt.NDArray[np.bool_] | None  # whether the percentile is extrapolated instead of counted
    probability: Doubles | None  # None: the domain has no labels
    verdicts: list[Verdict] | None  # None: the domain has no out-of-domain test, or the caller sent vectors
    unreadable: npt.NDArray[np.bool_] | None = None  # whether a text of the pair has no known token; None: all False

    @property
    def readable(self) -> Rows:
        """Indices of pairs whose texts both have known tokens; drift and shadow scoring count only these."""
        return np.arange(len(self.similarity)) if self.unreadable is None else np.flatnonzero(~self.unreadable)


def cosine(a: Vectors, b: Vectors) -> npt.NDArray[np.float32]:
    """Cosine of each pair of rows. (N, D), (N, D) -> (N,)

    The cosine is computed in float64 and rounded to float32. In float64, the last digits may depend on the number of
    rows; the rounding hides this.

    >>> left, right = np.array([[3, 4], [1, 0]], np.float32), np.array([[4, 3], [-2, 0]], np.float32)
    >>> cosine(left, right)
    array([ 0.96, -1.  ], dtype=float32)
    """
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    norms = np.sqrt(np.vecdot(a64, a64) * np.vecdot(b64, b64))
    scores = np.vecdot(a64, b64) / np.maximum(norms, TINY)  # 0 for a vector of zeros
    rounded: npt.NDArray[np.float32] = scores.astype(np.float32)  # also brings values slightly beyond ±1 back to ±1
    return rounded


def score(
    calibration: Calibration,
    texts: Sequence[PooledVector],
    pooled: Vectors,
    left: Rows,
    right: Rows,
    *,
    brought: bool = False,
) -> Scores:
    """Scores the pairs (left[i], right[i]) of N texts, whose vectors are the rows of `pooled` (N, D).

    Percentile and probability of a pair are 0 if one of its texts has no known token, because the vector of such a text
    is meaningless.

    `brought`: the caller sent vectors instead of texts. The out-of-domain test is then left out, because it needs the
    number of tokens of each text.
    """
    model = calibration.model
    latents = calibration.latents(pooled)
    raw = cosine(pooled.take(left, 0), pooled.take(right, 0))
    similarity = raw if calibration.transform is None else cosine(latents.take(left, 0), latents.take(right, 0))
    rates = model.false_match_rates(latents, left, right, similarity)
    labelled = None if model.probability is None or rates is None else model.probability.probability(rates)
    verdicts = None if brought else calibration.judge(texts, pooled, latents)
    percentile = None if rates is None else 1.0 - rates
    extrapolated = None if rates is None or model.scale is None else model.scale.extrapolated(rates)
    blind = [row for row, text in enumerate(texts) if text.unreadable]
    unreadable = np.isin(left, blind) | np.isin(right, blind) if blind else None
    if unreadable is not None:
        for column in (percentile, extrapolated, labelled):
            if column is not None:
                column[unreadable] = 0
    return Scores(raw, similarity, percentile, extrapolated, labelled, verdicts, unreadable)


def flags_of(embeddings: Embeddings, scores: Scores) -> list[list[str]]:
    """Flags of each requested text: `truncated`, `unreadable`, `out_of_domain`."""
    flags: list[list[str]] = []
    for row, text in enumerate(embeddings.texts):
        own = ["truncated"] if text.truncated else []
        if text.unreadable:
            own.append("unreadable")
        if scores.verdicts is not None and scores.verdicts[row].p_value < FALSE_ALARMS:
            own.append("out_of_domain")
        flags.append(own)
    return [flags[row] for row in embeddings.rows.tolist()]


def normalized(vectors: Vectors) -> Vectors:
    """Scales rows to unit length; a zero row stays zero.

    >>> normalized(np.array([[3, 4], [0, 0]], np.float32))
    array([[0.6, 0.8],
           [0. , 0. ]], dtype=float32)
    """
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: Vectors = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
    return unit
