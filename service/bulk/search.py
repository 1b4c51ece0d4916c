"""Finds nearby rows of a matrix with FAISS: exactly for few rows, else with an inverted file of cells (IVF).

A graph index (HNSW) is not used: its search ends with its beam and finds only some pairs among many copies, whereas a
radius search examines every member of a cell.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np

from service.core.arrays import Rows, Vectors

MARGIN = 1e-5  # of a similarity: products of unit float32 vectors are off by less; what is found is scored again
QUERIES = 256  # searched at once: a crowd of copies gives this many rows of hits and no more
ASKED = 2000  # rows whose pairs are all counted, for the recall
COLUMNS = 65_536  # of a block of products
FEWEST_PER_CELL = 39  # training vectors; FAISS warns below


@dataclass(frozen=True)
class Recall:
    """Share of the pairs of some rows that the index finds."""

    asked: int  # rows
    pairs: int  # that they are in
    found: float | None  # 0–1; None: they are in none
    cells: int
    looked_at: int  # cells a query


class ExactIndex:
    """Finds all pairs; the index grows block by block, so that each pair is examined once."""

    def __init__(self, unit: Vectors) -> None:
        self.unit = unit
        self.index = faiss.IndexFlatIP(unit.shape[1])

    def pass_over(self, start: int, stop: int) -> None:
        """A block whose pairs are known already."""
        self.index.add(self.unit[start:stop])

    def pairs(self, start: int, stop: int, radius: float) -> Iterator[tuple[Rows, Rows]]:
        """i, j of all pairs i < j whose j is in start … stop and whose product passes the radius."""
        self.index.add(self.unit[start:stop])
        yield from hits(self.index, self.unit, start, stop, radius)


class CellIndex:
    """An inverted file: a query examines only the nearest cells, as many as the requested recall needs."""

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
        """Nothing: the index holds every row from the beginning."""

    def pairs(self, start: int, stop: int, radius: float) -> Iterator[tuple[Rows, Rows]]:
        yield from hits(self.index, self.unit, start, stop, radius)


def hits(index: Any, unit: Vectors, start: int, stop: int, radius: float) -> Iterator[tuple[Rows, Rows]]:
    """Each pair once: with the later row as the query."""
    for at in range(start, stop, QUERIES):
        end = min(at + QUERIES, stop)
        limits, _, near = index.range_search(unit[at:end], radius)
        queries = np.repeat(np.arange(at, end), counts(limits))
        earlier = near < queries
        yield near[earlier].astype(np.intp), queries[earlier]


def counts(limits: Any) -> Rows:
    """Hits of each query; FAISS says where each one's begin. (Q + 1,) -> (Q,)"""
    at: Rows = limits.astype(np.intp)
    return at[1:] - at[:-1]


def every_hit(unit: Vectors, rows: Rows, radius: float) -> int:
    """How many pairs the rows are in, counted from their side; themselves not."""
    count = 0
    for start in range(0, len(unit), COLUMNS):
        count += int((unit[rows] @ unit[start : start + COLUMNS].T > radius).sum())
    return count - len(rows)


def index_of(
    unit: Vectors, radius: float, *, exact_up_to: int, wanted: float, seed: int, threads: int
) -> ExactIndex | CellIndex:
    """The exact index for at most so many rows."""
    faiss.omp_set_num_threads(threads)
    return ExactIndex(unit) if len(unit) <= exact_up_to else CellIndex(unit, radius, wanted, seed)
