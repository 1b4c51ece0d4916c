"""Similarities less what the words of the texts take away, as judged candidates teach.

An encoder sees texts that differ only in a number or a negation as nearly equal. So once enough candidates are judged,
a penalized logistic regression of their labels on the angle between the vectors and on the features of
`scoring/pair_features.py` says by how much each feature widens the angle. If the widened angles predict held-out labels
better than the angles alone, the candidates are ordered by their cosine, the adjusted similarity.
"""

from dataclasses import dataclass

import numpy as np

from isosim.arrays import Doubles, Floats, Integers, Rows
from isosim.matching.estimate import RANGE, angle
from isosim.scoring.pair_features import FEWEST_LABELS, SURE, moves, regression
from isosim.scoring.probability import parts

FEWEST_EACH = 10  # matches and others among the judged candidates


@dataclass(frozen=True)
class Ranking:
    """The candidates, best first."""

    order: Rows  # (P,) candidates
    place: Rows  # (P,) of each candidate in the order
    similarity: Floats  # (P,) in the order, adjusted if `adjusted`; at most the similarity of the vectors
    adjusted: bool = False
    unseen: Floats | None = None  # (N,) of the judged candidates, by a regression that has not seen their labels

    def above(self, threshold: float) -> int:
        """Number of candidates that reach the threshold; they are the first ones."""
        return len(self.similarity) - int(np.searchsorted(self.similarity[::-1], np.float32(threshold)))


def by_similarity(similarity: Floats) -> Ranking:
    """The candidates as they were found, (P,) from high to low."""
    order = np.arange(len(similarity))
    return Ranking(order, order, similarity)


def by_words(
    similarity: Floats,
    features: Floats,
    judged: Integers,
    labels: Integers,
    *,
    known: Doubles | None = None,
    seed: int = 0,
) -> Ranking:
    """The candidates by adjusted similarity, or as they were found if nothing says how their words matter.

    Args:
        similarity: (P,) of all candidates, from high to low.
        features: (P, F), see `pair_features`.
        judged, labels: (N,) distinct indices of the judged candidates, and their labels, 0 or 1.
        known: (F,) how far the features move the evidence, as other labels have taught (`PairMap.moves`). They count
            while these labels teach nothing.
    """
    if not len(similarity):
        return by_similarity(similarity)
    angles = angle(similarity)
    scale = RANGE / max(angles[0] - angles[-1], 1e-6)  # the logit rises by about RANGE over the candidates
    learnt = learn(angles[judged] * scale, features[judged], labels, seed)
    found, unseen = learnt or (known, None)
    if found is None:
        return by_similarity(similarity)
    every = cosines(angles - taken(features, found) / scale)
    order = np.argsort(-every, kind="stable")
    return Ranking(order, np.argsort(order), every[order], True, None if unseen is None else cosines(unseen / scale))


def learn(x: Doubles, features: Floats, labels: Integers, seed: int) -> tuple[Doubles, Doubles] | None:
    """How far features move the evidence x, and the moved evidence of each pair by a regression that has not seen it.
    (N,), (N, F), (N,) -> (F,), (N,)

    None: the labels are too few, or the features do not predict held-out ones better.
    """
    targets, ones = np.asarray(labels, np.float64), np.ones(len(x))
    if len(x) < FEWEST_LABELS or not FEWEST_EACH <= targets.sum() <= len(x) - FEWEST_EACH:
        return None
    held, alone, unseen = np.empty(len(x)), np.empty(len(x)), np.empty(len(x))
    for train, test in parts(targets, np.random.default_rng(seed)):
        found = moves(x[train], features[train], targets[train], ones[train])
        moved = x - taken(features, found)
        unseen[test] = moved[test]
        held[test] = losses(moved[train], targets[train], moved[test], targets[test])
        alone[test] = losses(x[train], targets[train], x[test], targets[test])
    gain = alone - held
    if not gain.mean() > SURE * gain.std() / np.sqrt(len(gain)):
        return None
    return moves(x, features, targets, ones), unseen


def taken(features: Floats, found: Doubles) -> Doubles:
    """How much the features take away, from 0 for the values that speak most for a match. (N, F), (F,) -> (N,)"""
    away = np.zeros(len(features))
    for column, move in enumerate(found.tolist()):  # one by one, to save memory
        away += abs(move) * np.abs(features[:, column] - (move > 0))
    return away


def losses(x: Doubles, targets: Doubles, held_x: Doubles, held: Doubles) -> Doubles:
    """Log-losses of held-out labels along x. (N,), (N,), (M,), (M,) -> (M,)"""
    slope, level = regression(x, np.empty((len(x), 0)), targets, np.ones(len(x)))
    logits = slope * (held_x - x.mean()) + level
    loss: Doubles = np.logaddexp(0, logits) - held * logits
    return loss


def cosines(angles: Doubles) -> Floats:
    """The inverse of `angle`. (N,)"""
    found: Floats = np.cos(np.clip(angles, -np.pi, 0)).astype(np.float32)
    return found
