"""Scores of sentence pairs."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from isosim.arrays import Doubles, Rows, Vectors
from isosim.encoders.texts import PooledVector
from isosim.scoring.calibration import Calibration
from isosim.scoring.out_of_domain import FALSE_ALARMS

TINY = float(np.finfo(np.float64).tiny)


class Scores(NamedTuple):
    """Columns with one entry per pair; `oddness` has one per text."""

    cosine: npt.NDArray[np.float32]  # cosine of the frozen encoder's vectors
    similarity: npt.NDArray[np.float32]  # cosine of the calibrated latents
    percentile: Doubles | None  # None: the domain has no reference
    extrapolated: npt.NDArray[np.bool_] | None  # whether the percentile is extrapolated instead of counted
    probability: Doubles | None  # None: the domain has no labels
    # p-values of the out-of-domain test; None: the domain has none, or the caller sent vectors
    oddness: list[float] | None
    # Whether a pair's scores mean nothing (see `unreadable_pairs`); None: all False.
    unreadable: npt.NDArray[np.bool_] | None = None

    @property
    def readable(self) -> Rows:
        """Indices of pairs whose scores mean something; drift counts only these."""
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
    features: Doubles | None = None,
) -> Scores:
    """Scores the pairs (left[i], right[i]) of N distinct texts, whose vectors are the rows of `pooled` (N, D).

    Percentile and probability of a pair are 0 if its scores mean nothing (`unreadable_pairs`).

    Args:
        brought: the caller sent vectors instead of texts. The out-of-domain test is then left out, because it needs the
            number of tokens of each text.
        features: (P, F) features of the pairs of texts, for a version with a `pair_map`.
    """
    model = calibration.model
    latents = calibration.latents(pooled)
    raw = cosine(pooled.take(left, 0), pooled.take(right, 0))
    similarity = raw if calibration.transform is None else cosine(latents.take(left, 0), latents.take(right, 0))
    rates = None if model.reference is None else model.reference.false_match_rate(similarity)
    labelled = None if model.probability is None or rates is None else model.probability.probability(rates)
    if model.pair_map is not None and rates is not None and features is not None:
        labelled = model.pair_map.probability(rates, features)
    oddness = None if brought else calibration.judge(texts, pooled, latents)
    percentile = None if rates is None else 1.0 - rates
    extrapolated = None if rates is None or model.reference is None else model.reference.extrapolated(rates)
    unreadable = unreadable_pairs(texts, left, right)
    if unreadable is not None:
        for column in (percentile, extrapolated, labelled):
            if column is not None:
                column[unreadable] = 0
    return Scores(raw, similarity, percentile, extrapolated, labelled, oddness, unreadable)


def unreadable_pairs(texts: Sequence[PooledVector], left: Rows, right: Rows) -> npt.NDArray[np.bool_] | None:
    """Whether the scores of each pair of distinct texts mean nothing; None if all mean something.

    They mean nothing if one of the texts is unreadable, or if two different texts have equal tokens and one of the
    tokens is the unknown one, because the encoder cannot see where the texts differ.
    """
    hashes = [text.unknown_hash for text in texts]
    blind = [row for row, text in enumerate(texts) if text.unreadable]
    if not blind and not any(hashes):
        return None
    numbers = np.array(hashes, np.uint64)
    same = (left != right) & (numbers[left] == numbers[right]) & (numbers[left] != 0)
    unreadable: npt.NDArray[np.bool_] = same | np.isin(left, blind) | np.isin(right, blind)
    return unreadable if unreadable.any() else None


def flags_of(
    texts: Sequence[PooledVector], scores: Scores, left: Rows, right: Rows
) -> tuple[list[list[str]], list[list[str]]]:
    """Flags of the two texts of each pair: `truncated`, `unreadable`, `out_of_domain`."""
    flags: list[list[str]] = []
    for text, p_value in zip(texts, scores.oddness or [1.0] * len(texts), strict=True):
        own = ["truncated"] if text.truncated else []
        if text.unreadable:
            own.append("unreadable")
        if p_value < FALSE_ALARMS:
            own.append("out_of_domain")
        flags.append(own)
    a, b = [flags[row] for row in left.tolist()], [flags[row] for row in right.tolist()]
    for pair in [] if scores.unreadable is None else np.flatnonzero(scores.unreadable).tolist():
        if not (texts[left[pair]].unreadable or texts[right[pair]].unreadable):  # different texts with equal tokens
            a[pair], b[pair] = ["unreadable", *a[pair]], ["unreadable", *b[pair]]
    return a, b


def normalized(vectors: Vectors) -> Vectors:
    """Scales rows to unit length; a zero row stays zero.

    >>> normalized(np.array([[3, 4], [0, 0]], np.float32))
    array([[0.6, 0.8],
           [0. , 0. ]], dtype=float32)
    """
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: Vectors = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
    return unit
