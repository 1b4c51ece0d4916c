"""Fits item normalization: a cohort of centroids, and the reference distribution of the normalized scores.

The domain's sentences are divided into clusters. The cohort consists of the clusters' centroids. A centroid is closer
to the sentences of its cluster than to new sentences. So before the cosines of a sentence are computed, the sentence is
removed from its centroid. Then 1.01 to 1.07 % of pairs pass at a nominal false-match rate of 1 %. Without the removal,
1.1 to 1.4 % pass (2,000 sentences, vectors of the encoder's last layer). The remaining error arises because the
centroids still contain the other sentence of the pair.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.cluster import KMeans

from isosim.arrays import Rows, Vectors
from isosim.fitting import reference
from isosim.fitting.evidence import repeated
from isosim.scoring.normalization import (
    KINDS,
    CohortStatistics,
    ItemNormalization,
    cohort_cosines,
    cohort_statistics,
    normalize,
)
from isosim.scoring.similarity import cosine, normalized

CENTROIDS = 256
MOST_CLUSTERED = 20_000  # largest number of sentences for k-means; the final centroids are computed from all sentences
# Iterations of k-means. Mini-batch k-means is not used: it left 40 % of the clusters with fewer than 5 sentences.
ITERATIONS = 10
ROWS = 10_000  # number of sentences compared with the cohort at once; their cosines take 10 MB
SENTENCES_A_CENTROID = 10  # smallest average number of sentences per centroid
FEWEST_MEMBERS = 5  # smallest number of sentences in a cluster; with fewer, the centroid could reveal their text
NEAREST = {"as-norm": 50, "csls": 10}  # kind of normalization -> default number of nearest centroids


@dataclass(frozen=True)
class Clusters:
    """For each cluster, the sum of its sentences' unit vectors (C, D). For each sentence, its cluster (N,)."""

    sums: Vectors
    labels: Rows

    @classmethod
    def from_vectors(cls, unit: Vectors, count: int, rng: np.random.Generator) -> "Clusters":
        """Clusters unit vectors (N, D) by k-means into at most `count` clusters.

        Clusters of fewer than 5 sentences are removed. Their sentences move to the nearest remaining cluster.
        """
        sample = unit if len(unit) <= MOST_CLUSTERED else rng.choice(unit, MOST_CLUSTERED, replace=False)
        means = KMeans(count, init="random", n_init=1, max_iter=ITERATIONS, random_state=int(rng.integers(2**31)))
        means.fit(sample)
        enough = np.bincount(means.predict(unit), minlength=count) >= FEWEST_MEMBERS
        if enough.any():
            means.cluster_centers_ = means.cluster_centers_[enough]
            labels = means.predict(unit)
        else:
            labels = np.zeros(len(unit), np.intp)
        sums = np.zeros((int(labels.max()) + 1, unit.shape[1]), unit.dtype)
        np.add.at(sums, labels, unit)
        return cls(sums, labels)

    def without(self, unit: Vectors, rows: Rows) -> Vectors:
        """For each row, the sum of the other vectors in its cluster, not normalized. (M, D)"""
        left: Vectors = self.sums[self.labels[rows]] - unit[rows]
        return left


def fit(
    kind: str,
    latents: Vectors,
    groups: Sequence[tuple[Vectors, Rows]],
    rng: np.random.Generator,
    *,
    centroids: int = CENTROIDS,
    nearest: int | None = None,
) -> ItemNormalization:
    """Fits the item normalization of a domain.

    Args:
        kind: "as-norm" or "csls".
        latents: (N, D) latents of the domain's distinct sentences, from the map that will be served.
        groups: for each fold, the cross-fitted latents and the indices of its sentences.
        centroids: maximum number of centroids; there is at most one for every 10 sentences.
        nearest: number of nearest centroids to which a sentence is compared; None: 50 for as-norm, 10 for csls.

    Raises:
        ValueError: an unknown kind, or fewer than 20 sentences.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown item normalization {kind!r}; choose from {', '.join(KINDS)}")
    unit = normalized(latents)
    clusters = Clusters.from_vectors(unit, max(1, min(centroids, len(unit) // SENTENCES_A_CENTROID)), rng)
    cohort = normalized(clusters.sums)
    near = min(NEAREST[kind] if nearest is None else nearest, len(cohort))
    usually = usual_scores(groups, unit, clusters, cohort, near)
    pairs = reference.sample_pairs(groups, rng)
    scores = normalize(kind, pairs.similarities, usually[pairs.left], usually[pairs.right])
    # If the vectors of A, B and C are equal, the service gives the pairs A–B and A–C the same score. The cross-fitted
    # scores of these pairs may differ, because each fold has its own map. So pairs of equal vectors are scored again,
    # with the cohort statistics that the service computes.
    own = np.full(len(unit), -1)
    for number, rows in enumerate(repeated(unit)):
        own[rows] = number
    equal = (own[pairs.left] >= 0) & (own[pairs.left] == own[pairs.right])
    if equal.any():
        rows, place = np.flatnonzero(own >= 0), np.cumsum(own >= 0) - 1
        served = cohort_statistics(cohort_cosines(latents[rows], cohort), near)
        left, right = place[pairs.left[equal]], place[pairs.right[equal]]
        scores[equal] = normalize(kind, pairs.similarities[equal], served[left], served[right])
    scored = reference.Pairs(scores.astype(np.float32), pairs.left, pairs.right, pairs.sentences)
    return ItemNormalization(kind, cohort, near, reference.build(scored, rng))


def usual_scores(
    groups: Sequence[tuple[Vectors, Rows]], unit: Vectors, clusters: Clusters, cohort: Vectors, nearest: int
) -> CohortStatistics:
    """Each sentence's cohort statistics (N,), from its cross-fitted latent and the cohort without this sentence."""
    mean, spread = np.empty(len(unit)), np.empty(len(unit))
    for latents, numbers in groups:
        for start in range(0, len(numbers), ROWS):
            own, rows = latents[start : start + ROWS], numbers[start : start + ROWS]
            cosines = cohort_cosines(own, cohort)
            cosines[np.arange(len(rows)), clusters.labels[rows]] = cosine(own, clusters.without(unit, rows))
            scores = cohort_statistics(cosines, nearest)
            mean[rows], spread[rows] = scores.mean, scores.spread
    return CohortStatistics(mean, spread)
