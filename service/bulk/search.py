"""Finds similar rows of a matrix with FAISS: exactly for few rows, otherwise with an inverted file of cells (IVF).

A graph index (HNSW) would find only some of the pairs among many copies, because its beam limits the hits; a radius
search examines every member of a cell.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np

from service.core.arrays import Rows, Vectors

MARGIN = 1e-5  # search radius below the threshold, above the rounding errors of products; hits are scored again
QUERIES = 256  # queries searched at once, to limit memory when there are many copies
ASKED = 2000  # rows whose pairs are counted exactly, to measure the recall
COLUMNS = 65_536  # rows compared at once in the exact count
FEWEST_PER_CELL = 39  # training vectors per cell; FAISS warns if there are fewer


@dataclass(frozen=True)
class Recall:
    """Recall of the index, measured on a sample of rows."""

    asked: int  # rows in the sample
    pairs: int  # pairs that contain them
    found: float | None  # share of the pairs that the index finds, 0–1; None: there are no pairs
    cells: int
    looked_at: int  # cells (clusters) of the index that a query searches


class ExactIndex:
    """Finds all pairs; the index grows block by block, so that each pair is examined once."""

    def __init__(self, unit: Vectors) -> None:
        self.unit = unit
        self.index = faiss.IndexFlatIP(unit.shape[1])

    def pass_over(self, start: int, stop: int) -> None:
        """Adds a block whose pairs are already known."""
        self.index.add(self.unit[start:stop])

    def pairs(self, start: int, stop: int, radius: float) -> Iterator[tuple[Rows, Rows]]:
        """Yields i, j of all pairs i < j with j in start … stop and a product above the radius."""
        self.index.add(self.unit[start:stop])
        yield from hits(self.index, self.unit, start, stop, radius)


class CellIndex:
    """An inverted file: a query examines only its nearest cells, as many as the requested recall needs."""

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
        """Does nothing, because the index contains all rows from the start."""

    def pairs(self, start: int, stop: int, radius: float) -> Iterator[tuple[Rows, Rows]]:
        yield from hits(self.index, self.unit, start, stop, radius)


def hits(index: Any, unit: Vectors, start: int, stop: int, radius: float) -> Iterator[tuple[Rows, Rows]]:
    """Yields each pair once, with the later row as the query."""
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
    """Number of hits of these rows among all rows, without the rows themselves."""
    count = 0
    for start in range(0, len(unit), COLUMNS):
        count += int((unit[rows] @ unit[start : start + COLUMNS].T > radius).sum())
    return count - len(rows)


def index_of(
    unit: Vectors, radius: float, *, exact_up_to: int, wanted: float, seed: int, threads: int
) -> ExactIndex | CellIndex:
    """The exact index for at most `exact_up_to` rows, else a cell index with recall `wanted`."""
    faiss.omp_set_num_threads(threads)
    return ExactIndex(unit) if len(unit) <= exact_up_to else CellIndex(unit, radius, wanted, seed)
