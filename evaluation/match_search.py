"""Exact search of the best pairs of two large files of vectors: time, peak memory, and the same pairs as FAISS's exact
index. Each search runs in a process of its own."""

import multiprocessing
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from evaluation.corpora import Bench, Row
from isosim.arrays import Vectors
from isosim.matching.candidates import MARGIN, find
from isosim.scoring.similarity import cosine, normalized

MEMORY_BAR = 2.0  # GB
QUERIES = 512  # that FAISS searches at once
TOPICS = 20_000  # directions that both files' vectors lie around, so that some pairs are similar

Pairs = tuple[np.ndarray, np.ndarray, float]  # rows of a, rows of b, and the lowest similarity
Search = Callable[[Vectors, Vectors, float], Pairs]


def match_search(bench: Bench, rows: int = 100_000, dimensions: int = 384) -> Iterator[Row]:
    """Ten pairs for each row of one file with all rows of another, by `matching.candidates` and by FAISS."""
    del bench  # the vectors are drawn
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rng = np.random.default_rng(0)
        topics = rng.standard_normal((TOPICS, dimensions), np.float32)
        for side in ("a", "b"):
            near = topics[rng.integers(TOPICS, size=rows)]
            spread = rng.uniform(0.3, 2, (rows, 1)).astype(np.float32)
            np.save(folder / side, normalized(near + spread * rng.standard_normal((rows, dimensions), np.float32)))
        ours = in_process(folder, by_blocks, 0.0)
        faiss = in_process(folder, by_faiss, float(ours["floor"]))
        same = bool(np.array_equal(np.load(folder / "by_blocks.npy"), np.load(folder / "by_faiss.npy")))
    yield {
        "rows": rows, "dimensions": dimensions, "pairs": ours["pairs"], "floor": ours["floor"],
        "seconds": ours["seconds"], "FAISS, seconds": faiss["seconds"],
        "peak memory, GB": ours["gigabytes"], "FAISS, GB": faiss["gigabytes"],
        "same pairs": same, "kept": same and ours["gigabytes"] < MEMORY_BAR,
    }  # fmt: skip


def in_process(folder: Path, search: Search, floor: float) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=measured, args=(there, folder, search, floor))
    process.start()
    there.close()
    facts: dict[str, float] = here.recv()
    process.join()
    return facts


def measured(pipe: Connection, folder: Path, search: Search, floor: float) -> None:
    """Runs a search on the folder's vectors; writes its pairs, in order, as one number each."""
    a, b = (np.load(folder / f"{side}.npy", mmap_mode="r") for side in ("a", "b"))
    began = time.perf_counter()
    left, right, lowest = search(a, b, floor)
    seconds = time.perf_counter() - began
    peak = int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024 / 1e9  # type: ignore[index]
    np.save(folder / search.__name__, np.sort(left.astype(np.int64) * len(b) + right))
    pipe.send({"pairs": len(left), "floor": lowest, "seconds": seconds, "gigabytes": peak})


def by_blocks(a: Vectors, b: Vectors, _: float) -> Pairs:
    found = find(a, b)
    return found.left, found.right, found.floor


def by_faiss(a: Vectors, b: Vectors, floor: float) -> Pairs:
    """Pairs from `floor` on. FAISS's scores differ in their last digits, so those near the floor are scored again."""
    import faiss  # noqa: PLC0415 - only this experiment needs it

    index = faiss.IndexFlatIP(a.shape[1])
    index.add(np.asarray(b))
    lefts, rights = [], []
    for start in range(0, len(a), QUERIES):
        limits, _, near = index.range_search(np.asarray(a[start : start + QUERIES]), floor - MARGIN)
        lefts.append(
            np.repeat(np.arange(len(limits) - 1), limits[1:].astype(np.intp) - limits[:-1].astype(np.intp)) + start
        )
        rights.append(near)
    left, right = np.concatenate(lefts), np.concatenate(rights)
    kept = np.concatenate(
        [
            cosine(a[left[at : at + QUERIES]], b[right[at : at + QUERIES]]) >= np.float32(floor)
            for at in range(0, len(left), QUERIES)
        ]
    )
    return left[kept], right[kept], floor
