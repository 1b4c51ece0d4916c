"""Scores of sentence pairs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from service.core.arrays import Doubles, Rows, Vectors
from service.core.encoding.embedding import Embeddings
from service.core.encoding.texts import PooledVector
from service.core.scoring.calibration import Calibration
from service.core.scoring.out_of_domain import FALSE_ALARMS, DomainTest, Judgement, level_energies


@dataclass(frozen=True)
class Scores:
    """Columns, one entry a pair; the domain's judgement has one a text."""

    cosine: npt.NDArray[np.float32]  # of the frozen encoder's vectors
    similarity: npt.NDArray[np.float32]  # of the calibrated latents
    percentile: Doubles | None  # None: the domain has no reference
    extrapolated: npt.NDArray[np.bool_] | None  # percentiles beyond what the reference counts; None as above
    probability: Doubles | None  # None: the domain was given no labels
    judgement: Judgement | None  # None: the domain has no test of what belongs to it
    unreadable: npt.NDArray[np.bool_] | None = None  # pairs with a text without a known token; None: there are none

    @property
    def readable(self) -> Rows:
        """Indices of the pairs whose two texts both have known tokens; drift and shadow scoring count these alone."""
        return np.arange(len(self.similarity)) if self.unreadable is None else np.flatnonzero(~self.unreadable)


def cosine(a: Vectors, b: Vectors) -> npt.NDArray[np.float32]:
    """Row by row, in float64, so that a pair's score does not depend on the pairs beside it. (N, D)² -> (N,)

    >>> left, right = np.array([[3, 4], [1, 0]], np.float32), np.array([[4, 3], [-2, 0]], np.float32)
    >>> cosine(left, right)
    array([ 0.96, -1.  ], dtype=float32)
    """
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    norms = np.sqrt(np.vecdot(a64, a64) * np.vecdot(b64, b64))
    scores = np.vecdot(a64, b64) / np.maximum(norms, np.finfo(np.float64).tiny)  # 0 for a vector of zeros
    clipped: npt.NDArray[np.float32] = np.minimum(np.maximum(scores, -1.0), 1.0).astype(np.float32)
    return clipped


def score(calibration: Calibration, texts: Sequence[PooledVector], pooled: Vectors, left: Rows, right: Rows) -> Scores:
    """Scores the pairs (left[i], right[i]) of N texts, whose vectors are the rows of `pooled` (N, D).

    All texts without a known token have nearly the same vector, which says nothing of how alike they are: the
    percentile and the probability of their pairs are 0.
    """
    model = calibration.model
    latents = calibration.latents(pooled)
    raw = cosine(pooled[left], pooled[right])
    similarity = raw if calibration.transform is None else cosine(latents[left], latents[right])
    rates = model.false_match_rates(latents, left, right, similarity)
    labelled = None if model.probability is None or rates is None else model.probability.probability(rates)
    judgement = None if model.domain_test is None else judge(model.domain_test, texts, pooled, latents, calibration)
    percentile = None if rates is None else 1.0 - rates
    extrapolated = None if rates is None or model.scale is None else model.scale.extrapolated(rates)
    blind = [row for row, text in enumerate(texts) if text.unreadable]
    unreadable = np.isin(left, blind) | np.isin(right, blind) if blind else None
    if unreadable is not None:
        for column in (percentile, extrapolated, labelled):
            if column is not None:
                column[unreadable] = 0
    return Scores(raw, similarity, percentile, extrapolated, labelled, judgement, unreadable)


def judge(
    test: DomainTest, texts: Sequence[PooledVector], pooled: Vectors, latents: Vectors, calibration: Calibration
) -> Judgement:
    """The test's judgement of each text, remembered with the text: nothing but its vector enters it."""
    known = [text.judged for text in texts if text.judged is not None and text.judged[0] is test.identity]
    if len(known) == len(texts):
        _, p_values, distances = zip(*known, strict=True)
        return Judgement(np.array(p_values), np.array(distances))
    energies = level_energies(latents, calibration.levels) if calibration.levels else None
    judgement = test.judge(pooled, np.array([text.tokens for text in texts]), energies)
    columns = (judgement.p_values.tolist(), judgement.distances.tolist())
    for text, p_value, distance in zip(texts, *columns, strict=True):
        text.judged = (test.identity, p_value, distance)
    return judgement


def flags_of(embeddings: Embeddings, scores: Scores) -> list[list[str]]:
    """What a caller should know of each text asked for: `truncated`, `unreadable`, `out_of_domain`."""
    flags = [["truncated"] if text.truncated else [] for text in embeddings.texts]
    for text, own in zip(embeddings.texts, flags, strict=True):
        if text.unreadable:
            own.append("unreadable")
    if scores.judgement is not None:
        for row in np.flatnonzero(scores.judgement.p_values < FALSE_ALARMS):
            flags[row].append("out_of_domain")
    return [flags[row] for row in embeddings.rows]


def notices_of(calibration: Calibration) -> list[str]:
    """What a caller should know of all scores of a calibration."""
    model = calibration.model
    notices = [] if model.reference is not None else ["no_reference"]
    if model.normalization is not None:
        notices.append(f"percentile_normalized:{model.normalization.kind}")
    if model.probability is not None and model.probability.graded:
        notices.append(f"probability_is_mean_grade:{model.probability.low:g}-{model.probability.high:g}")
    return notices


def normalized(vectors: Vectors) -> Vectors:
    """Rows at unit length; a zero row stays zero.

    >>> normalized(np.array([[3, 4], [0, 0]], np.float32))
    array([[0.6, 0.8],
           [0. , 0. ]], dtype=float32)
    """
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: Vectors = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
    return unit
