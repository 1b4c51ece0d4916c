"""Counts how often a search among a domain's own sentences finds a wrong match."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from isosim.arrays import Doubles, Rows, Vectors
from isosim.scoring.false_hits import COUNTED, FalseHitTable
from isosim.scoring.reference import ROUNDING, ReferenceDistribution
from isosim.scoring.similarity import normalized

MOST_QUERIES, MOST_ENTRIES = 4000, 20_000
FEWEST_ENTRIES = 4
RATES = np.logspace(np.log10(0.02), -7, 45)
# Random pairs with equal similarities form a tie. The table gets a threshold at a tie only if the false-match rate
# there is below 0.1. Storing the pairs that reach a threshold with a higher rate would take a gigabyte.
MOST_TIED = 0.1
GALLERIES = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)
BOOTSTRAPS = 25
BLOCK = 256  # queries compared at once


@dataclass(frozen=True)
class Near:
    """Pairs (P,) of a query and an entry whose similarity reaches the lowest of the table's thresholds.

    `level` is the index of the highest threshold that each pair reaches.
    """

    query: Rows
    entry: Rows
    level: Rows
    queries: int
    entries: int  # number of entries with which each query is compared
    sentences: npt.NDArray[np.intp]  # (queries,) row of each query among the entries

    def hits(self, levels: int, weights: Doubles | None = None) -> npt.NDArray[np.float64]:
        """For each query, number of entries that reach each level, or sum of the entries' weights. (queries, L)"""
        place = self.query * levels + self.level
        weight = None if weights is None else weights[self.entry]
        counts = np.bincount(place, weight, minlength=self.queries * levels).reshape(self.queries, levels)
        return counts[:, ::-1].cumsum(1)[:, ::-1].astype(np.float64)


def build(
    groups: Sequence[tuple[Vectors, Rows]], reference: ReferenceDistribution, rng: np.random.Generator
) -> FalseHitTable | None:
    """Builds the table from cross-fitted latents: within each group, sentences search among the other sentences.

    The share of queries with a false hit among G entries is the mean over all subsets of G entries, which `shares`
    computes exactly. None if a group has fewer than 5 sentences.
    """
    ties = [high for high in reference.gaps[:, 1].tolist() if RATES[-1] < high < MOST_TIED]
    rates = np.unique([*RATES, *ties])[::-1]
    # Each threshold is lowered by the rounding error of similarities. Otherwise some pairs of a tie could be below the
    # threshold at the tie's similarity.
    thresholds = np.array([reference.threshold(float(rate)) for rate in rates]) - ROUNDING
    found = [near(latents, thresholds, len(groups), rng) for latents, _ in groups]
    least = min(one.entries for one in found)
    if least < FEWEST_ENTRIES:
        return None
    galleries = np.array(sorted({size for size in GALLERIES if size < least // 2} | {least // 2, least}))
    queries = np.array([one.queries for one in found])
    every = [shares(one.hits(len(rates)), one.entries, galleries) for one in found]
    hits = np.average(every, axis=0, weights=queries)
    counted = hits * queries.sum() >= COUNTED
    spread = np.std([*resampled(found, galleries, len(rates), rng)], axis=0)
    errors = np.where(counted, spread / np.maximum(hits, 1e-12), np.nan)
    return FalseHitTable(
        rates=rates,
        galleries=galleries.astype(np.float64),
        hits=np.minimum.accumulate(hits, axis=1),
        errors=errors,
        queries=int(queries.sum()),
        entries=int(least),
    )


def near(latents: Vectors, thresholds: Doubles, groups: int, rng: np.random.Generator) -> Near:
    """Finds the pairs of one group that reach the lowest threshold.

    `groups` is the number of groups. Each group uses at most MOST_QUERIES / `groups` queries and MOST_ENTRIES /
    `groups` entries.
    """
    unit = normalized(latents)
    entries = np.sort(rng.permutation(len(unit))[: MOST_ENTRIES // groups])
    unit = unit[entries]
    queries = np.sort(rng.permutation(len(unit))[: MOST_QUERIES // groups])
    parts: list[tuple[Rows, Rows, Rows]] = []
    for start in range(0, len(queries), BLOCK):
        rows = queries[start : start + BLOCK]
        similarities = unit[rows] @ unit.T
        similarities[np.arange(len(rows)), rows] = -2.0  # a query does not find itself
        query, entry = np.nonzero(similarities >= thresholds[0])
        level = np.searchsorted(thresholds, similarities[query, entry], side="right") - 1
        parts.append((query + start, entry, level))
    query, entry, level = (np.concatenate([part[column] for part in parts]) for column in range(3))
    return Near(query, entry, np.maximum(level, 0), len(queries), len(unit) - 1, queries)


def shares(hits: Doubles, entries: int, galleries: Rows, weights: Doubles | None = None) -> Doubles:
    """Expected share of queries with a hit among G random entries, for each G in `galleries`. (Q, L) -> (G, L)

    If k of n entries are hits, G random entries contain none with probability C(n − k, G) / C(n, G).
    """
    rounded = np.minimum(np.rint(hits), entries).astype(np.intp)
    most = int(rounded.max(initial=0))
    k = np.arange(most + 1)
    found = []
    for size in galleries.tolist():
        left = entries - k
        none = gammaln(left + 1) - gammaln(np.maximum(left - size, 0) + 1) - gammaln(entries + 1)
        none = np.where(left >= size, np.exp(none + gammaln(entries - size + 1)), 0.0)
        found.append(np.average((1 - none)[rounded], axis=0, weights=weights))
    every: Doubles = np.clip(np.array(found), 0.0, 1.0)
    return every


def resampled(found: Sequence[Near], galleries: Rows, levels: int, rng: np.random.Generator) -> Iterator[Doubles]:
    """Yields the shares (G, L) for each bootstrap sample of the sentences.

    A sentence that was drawn n times has the weight n, both as a query and as an entry.
    """
    for _ in range(BOOTSTRAPS):
        total = np.zeros((len(galleries), levels))
        weight_of_all = 0.0
        for one in found:
            count = one.entries + 1
            weights = rng.multinomial(count, np.full(count, 1 / count)).astype(np.float64)
            of_queries = weights[one.sentences]
            if of_queries.any():
                own = shares(one.hits(levels, weights), one.entries, galleries, of_queries)
                total += of_queries.sum() * own
                weight_of_all += float(of_queries.sum())
        yield total / max(weight_of_all, 1.0)
