"""Searches with known answers: how often a search hits wrongly, and how many of the matches it finds, by threshold.

Usage: `answer(queries, gallery, truth).at(0.9)`. A search returns the best entry of the gallery if its similarity is at
least the threshold, as a semantic cache does.
"""

from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from isosim.arrays import Integers, Vectors
from isosim.matching.candidates import blocks, rescored

NONE = -1  # stands for the match of a query that has none


@dataclass(frozen=True)
class Share:
    """A share of `total` queries, and the interval of the true share."""

    count: int
    total: int
    share: float | None  # None: `total` is 0
    interval: tuple[float, float]

    @classmethod
    def of(cls, count: int, total: int, confidence: float) -> "Share":
        if not total:
            return cls(count, total, None, (0.0, 1.0))
        return cls(count, total, count / total, exact_interval(count, total, confidence))


@lru_cache(maxsize=4096)
def exact_interval(count: int, total: int, confidence: float) -> tuple[float, float]:
    """The interval of Clopper and Pearson (1934): a share outside of it gives so few or so many with a chance of at
    most (1 − confidence) / 2. Wilson's is narrower, and too narrow for the few wrong hits of a rate of 1 %."""
    tail = (1 - confidence) / 2
    ways = np.cumsum(np.log(np.arange(total, 0, -1)) - np.log(np.arange(1, total + 1)))
    ways = np.append(0.0, ways)  # logarithms of the numbers of ways to choose 0 … total

    def at_most(most: int, share: float) -> float:
        counts = np.arange(most + 1)
        logs = ways[: most + 1] + counts * np.log(share) + (total - counts) * np.log1p(-share)
        return float(np.exp(logs).sum())

    def solved(most: int, chance: float) -> float:
        """The share for which at most `most` have this chance, by halving: the chance falls with the share."""
        low, high = 0.0, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if at_most(most, middle) > chance else (low, middle)
        return (low + high) / 2

    return (
        solved(count - 1, 1 - tail) if count else 0.0,
        solved(count, tail) if count < total else 1.0,
    )


@dataclass(frozen=True)
class Outcome:
    """What the searches give at a threshold."""

    threshold: float
    wrong: Share  # queries whose hit is not their match, or which have no match
    found: Share  # queries with a match whose hit it is, of all queries with a match


@dataclass(frozen=True)
class Searches:
    """The best entry of each query, and whether it is the query's match. All arrays: (Q,)."""

    best: npt.NDArray[np.int32]  # row of the gallery
    similarity: npt.NDArray[np.float32]
    right: npt.NDArray[np.bool_]
    matched: int  # number of queries with a match
    confidence: float = 0.95

    def at(self, threshold: float) -> Outcome:
        hit = self.similarity >= np.float32(threshold)
        wrong, found = int((hit & ~self.right).sum()), int((hit & self.right).sum())
        return Outcome(
            threshold,
            Share.of(wrong, len(self.best), self.confidence),
            Share.of(found, self.matched, self.confidence),
        )

    def curve(self, points: int = 100) -> list[Outcome]:
        """Outcomes at quantiles of the similarities, from the strictest threshold."""
        places = np.linspace(1, 0, points) if len(self.best) else np.empty(0)
        thresholds = np.unique(np.quantile(self.similarity, places, method="nearest")) if len(places) else places
        return [self.at(float(threshold)) for threshold in thresholds[::-1]]

    def threshold_for(self, false_hit_rate: float, *, bound: bool = False) -> float | None:
        """A threshold with at most this share of wrong hits, and as many as that allows.

        `bound`: the upper end of the share's interval is at most this rate; None: that needs more queries (`needed`).
        """
        allowed = int(false_hit_rate * len(self.best) + 1e-9)
        if bound:
            while allowed >= 0 and Share.of(allowed, len(self.best), self.confidence).interval[1] > false_hit_rate:
                allowed -= 1
        if allowed < 0 or not len(self.best):
            return None
        wrong = np.sort(self.similarity[~self.right])[::-1]
        if allowed >= len(wrong):
            return float(self.similarity.min())
        # The lowest wrong hit that is allowed: its expected rate in further searches is the rate asked for, that of
        # the lowest threshold between it and the next one would be higher.
        if allowed and wrong[allowed - 1] > wrong[allowed]:
            return float(wrong[allowed - 1])
        return float(np.nextafter(wrong[allowed], np.float32(2)))

    def needed(self, false_hit_rate: float, width: float) -> int:
        """Number of queries, these included, whose interval of this share of wrong hits is at most so wide."""
        few, many = 0, 1
        while _width(false_hit_rate, many, self.confidence) > width:
            few, many = many, 2 * many
        while many - few > 1:
            middle = (few + many) // 2
            wide = _width(false_hit_rate, middle, self.confidence) > width
            few, many = (middle, many) if wide else (few, middle)
        return many


def _width(share: float, total: int, confidence: float) -> float:
    """Width of Wilson's interval for a share of `total` queries; falls with `total`."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    width: float = 2 * z * (share * (1 - share) / total + z**2 / (4 * total**2)) ** 0.5 / (1 + z**2 / total)
    return width


def answer(queries: Vectors, gallery: Vectors, truth: Integers, *, confidence: float = 0.95) -> Searches:
    """Searches each query among all entries. Of equally similar entries, the query's match is its best entry.

    Args:
        queries, gallery: vectors of unit length, (Q, D) and (G, D).
        truth: (Q,) row of the gallery that matches, or −1: the query has no match.
    """
    best = np.zeros(len(queries), np.int32)
    similarity = np.full(len(queries), -2, np.float32)
    for row, column, block in blocks(queries, gallery, 0, len(queries)):
        at = block.argmax(1)
        score = block[np.arange(len(block)), at]
        part = slice(row, row + len(block))
        better = score > similarity[part]
        similarity[part][better], best[part][better] = score[better], at[better] + column
    similarity = rescored(queries, gallery, np.arange(len(queries)), best)
    known = np.flatnonzero(np.asarray(truth) != NONE)
    tied = known[rescored(queries, gallery, known, truth[known]) >= similarity[known]]
    best[tied] = truth[tied]
    return Searches(best, similarity, best == truth, len(known), confidence)
