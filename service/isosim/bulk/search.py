"""Finds similar rows of a matrix with FAISS: exactly for few rows, otherwise with an inverted file (IVF).

An inverted file divides the rows into clusters, which FAISS calls cells. A query searches only the nearest cells, but
examines every row in them. A graph index (HNSW) would miss pairs of a text with many copies, because it limits the
number of hits per query.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np

from isosim.arrays import Rows, Vectors

# The rounding errors of FAISS's cosines are smaller than MARGIN. So FAISS searches with a threshold lowered by MARGIN.
# All pairs found are then scored again and compared with the original threshold.
MARGIN = 1e-5
QUERIES = 256  # number of queries searched at once; limits the memory for texts with many copies
ASKED = 2000  # number of rows whose pairs are counted exactly, to measure the recall
COLUMNS = 65_536  # number of columns of the similarity matrix that `every_hit` computes at once
FEWEST_PER_CELL = 39  # smallest number of training vectors per cell; FAISS warns if there are fewer


@dataclass(frozen=True)
class Recall:
    """Recall of the index, measured on a sample of rows."""

    asked: int  # number of rows in the sample
    pairs: int  # number of matches of the sample's rows; a pair of two sample rows counts twice
    found: float | None  # share of these matches that the index finds, 0–1; None: there are no matches
    cells: int  # number of cells of the index
    looked_at: int  # number of cells that a query searches


class ExactIndex:
    """Finds all pairs. The index grows block by block, so that each pair is compared only once."""

    def __init__(self, unit: Vectors) -> None:
        self.unit = unit
        self.index = faiss.IndexFlatIP(unit.shape[1])

    def pass_over(self, start: int, stop: int) -> None:
        """Adds rows start … stop − 1 without searching for their pairs, which an earlier run has already written."""
        self.index.add(self.unit[start:stop])

    def pairs(self, start: int, stop: int, radius: float) -> Iterator[tuple[Rows, Rows]]:
        """Adds rows start … stop − 1. Yields arrays i, j: j is an added row, i < j, their cosine is above `radius`."""
        self.index.add(self.unit[start:stop])
        yield from hits(self.index, self.unit, start, stop, radius)


class CellIndex:
    """An inverted file: a query searches only its nearest cells, as many as the requested recall needs."""

    def __init__(self, unit: Vectors, radius: float, wanted: float, seed: int) -> None:
        self.unit = unit
        count = max(1, int(4 * np.sqrt(len(unit))))
        count = min(count, max(1, len(unit) // FEWEST_PER_CELL))
        rng = np.random.default_rng(seed)
        train = rng.choice(len(unit), min(len(unit), 64 * count), replace=False)
        self.index = faiss.IndexIVFFlat(
            faiss.IndexFlatIP(unit.shape[1]), unit.shape[1], count, faiss.METRIC_INNER_PRODUCT
        )
        self.index.cp.seed = seed % 2**31
        self.index.train(unit[np.sort(train)])
        self.index.add(unit)
        self.recall = self._tune(radius, wanted, np.sort(rng.choice(len(unit), min(len(unit), ASKED), replace=False)))

    def _tune(self, radius: float, wanted: float, rows: Rows) -> Recall:
        true = every_hit(self.unit, rows, radius)
        cells = int(self.index.nlist)
        looked_at = 1
        while True:
            self.index.nprobe = looked_at
            limits, _, near = self.index.range_search(self.unit[rows], radius)
            hits_seen = int(((near != np.repeat(rows, counts(limits))) & (near >= 0)).sum())
            share = hits_seen / true if true else None
            if looked_at == cells or share is None or share >= wanted:
                return Recall(len(rows), true, share, cells, looked_at)
            looked_at = min(cells, 2 * looked_at)

    def pass_over(self, start: int, stop: int) -> None:
        """Does nothing, because all rows were added to this index when it was created."""

    def pairs(self, start: int, stop: int, radius: float) -> Iterator[tuple[Rows, Rows]]:
        yield from hits(self.index, self.unit, start, stop, radius)


def hits(index: Any, unit: Vectors, start: int, stop: int, radius: float) -> Iterator[tuple[Rows, Rows]]:
    """Searches the index for rows start … stop − 1. Yields arrays i, j: j is one of these rows, and i < j."""
    for at in range(start, stop, QUERIES):
        end = min(at + QUERIES, stop)
        limits, _, near = index.range_search(unit[at:end], radius)
        queries = np.repeat(np.arange(at, end), counts(limits))
        earlier = near < queries
        yield near[earlier].astype(np.intp), queries[earlier]


def counts(limits: Any) -> Rows:
    """Number of hits of each query, from the offsets that FAISS returns. (Q + 1,) -> (Q,)"""
    at: Rows = limits.astype(np.intp)
    return at[1:] - at[:-1]


def every_hit(unit: Vectors, rows: Rows, radius: float) -> int:
    """Number of hits of these rows among all rows; a row's hit with itself is not counted."""
    count = 0
    for start in range(0, len(unit), COLUMNS):
        count += int((unit[rows] @ unit[start : start + COLUMNS].T > radius).sum())
    return count - len(rows)


def index_of(
    unit: Vectors, radius: float, *, exact_up_to: int, wanted: float, seed: int, threads: int
) -> ExactIndex | CellIndex:
    """The exact index for at most `exact_up_to` rows, otherwise an inverted file with recall `wanted`."""
    faiss.omp_set_num_threads(threads)
    return ExactIndex(unit) if len(unit) <= exact_up_to else CellIndex(unit, radius, wanted, seed)
