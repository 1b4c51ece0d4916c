"""Finds near-duplicates: all pairs of rows that reach the threshold for a false-match rate or a precision."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from isosim.arrays import Rows, Vectors
from isosim.bulk.inputs import open_input
from isosim.bulk.job import BLOCK, Form, Job, claim, present
from isosim.bulk.run import SUCCESS, Report
from isosim.bulk.writing import to_bytes
from isosim.errors import EmptyInput, InvalidInput
from isosim.matching.candidates import MARGIN, pairs_above
from isosim.scoring.advice import Advice, Target, advise
from isosim.scoring.calibration import Calibration
from isosim.scoring.similarity import normalized, score
from isosim.store.artifacts import json_bytes
from isosim.store.blobs import opened

MOST = 50_000_000  # pairs; the search fails if there are more, usually because of many exact copies

PAIRS = pa.schema(
    {"i": pa.int64(), "j": pa.int64(), "similarity": pa.float32(), "cosine": pa.float32()}
    | dict.fromkeys(("percentile", "probability"), pa.float64())
)


@dataclass(frozen=True)
class PairSearch:
    """What is searched for, and how."""

    target: Target  # a false-match rate or a precision
    write: Form = "parquet"
    most: int = MOST
    block: int = BLOCK  # rows in a block; its file has the pairs (row of the block, earlier row)


@dataclass(frozen=True)
class FoundPairs:
    """Counts and threshold of a search."""

    rows: int  # with a readable text
    pairs: int
    threshold: float
    extrapolated: bool
    reference_pairs: int


def begin(output: str, job: Job, calibration: Calibration, search: PairSearch) -> Advice:
    """Claims OUTPUT for a search among the vectors of `job`, and returns the similarity that reaches its target.

    Raises:
        Conflict: OUTPUT belongs to another job, or the version lacks labelled pairs for a precision, or random pairs
            for a false-match rate.
        InvalidInput: no threshold reaches the target.
    """
    advice = advise(calibration.model, calibration.domain, search.target)
    claim(opened(output), job.facts | asdict(search) | {"task": "pairs"})
    return advice


def find(
    output: str, vectors: str, job: Job, calibration: Calibration, search: PairSearch, advice: Advice, report: Report
) -> FoundPairs:
    """Searches the vectors that `job` has written, scores the pairs as /similarity does, and writes a file for every
    block of rows. Skips blocks whose file is present.

    Raises:
        InvalidInput: no row has a readable text, or there are more pairs than `search.most`.
    """
    target, form = opened(output), search.write
    report("reading vectors", None)
    rows, pooled, kept = load(vectors, job)
    report("calibrating", None)
    unit = in_blocks(calibration, pooled)
    radius = advice.similarity - MARGIN
    facts = job.provenance(task="pairs", space="", **{name: str(value) for name, value in search.target.facts.items()})
    there = present(target)
    count = counted(output, form)
    for number, start in enumerate(range(0, len(unit), search.block)):
        name, stop = f"part-{number:06}.{form}", min(start + search.block, len(unit))
        if name in there:
            continue
        block = [PAIRS.empty_table()]
        for left, right in pairs_above(unit, start, stop, radius):
            block.append(scored(calibration, pooled, left, right, advice.similarity))
            count += len(block[-1])
            if count > search.most:
                raise InvalidInput(
                    f"more than {search.most:,} pairs among the first {stop:,} of {len(unit):,} rows; give a lower "
                    "--fmr, or remove exact copies first"
                )
        target.write(name, to_bytes(numbered(pa.concat_tables(block), rows, kept), form, facts))
        report(f"{count:,} pairs", stop / len(unit))
    found = FoundPairs(len(rows), count, advice.similarity, advice.extrapolated, advice.pairs)
    target.write(SUCCESS, json_bytes(asdict(found)))
    return found


def counted(output: str, form: str) -> int:
    """Number of pairs in the files of OUTPUT."""
    try:
        return open_input(f"{output}/part-*.{form}", {"i": pa.int64()}).count()
    except EmptyInput:
        return 0


def load(vectors: str, job: Job) -> tuple[Rows, Vectors, pa.Table]:
    """Numbers (N,) of the rows that have a readable text, the vectors (N, D) of these rows, and the columns to copy.

    The vector of an unreadable text says little about it.
    """
    types = dict.fromkeys(job.options.keep) | {"row": pa.int64(), "vector": None, "unreadable": pa.bool_()}
    table = open_input(f"{vectors}/part-*", types).table()
    table = table.filter(pc.and_(pc.is_valid(table["vector"]), pc.invert(pc.fill_null(table["unreadable"], True))))
    if not len(table):
        raise InvalidInput(f"{vectors}: no row has a readable text")
    column = table["vector"].combine_chunks()
    pooled = np.asarray(column.flatten(), np.float32).reshape(len(table), column.type.list_size)
    return table["row"].to_numpy(), pooled, table.select(list(job.options.keep)).combine_chunks()


def in_blocks(calibration: Calibration, pooled: Vectors) -> Vectors:
    """Calibrated vectors (N, D), scaled to unit length; computed in blocks to save memory."""
    unit = np.empty_like(pooled)
    for start in range(0, len(pooled), BLOCK):
        unit[start : start + BLOCK] = normalized(calibration.latents(pooled[start : start + BLOCK]))
    return unit


def scored(calibration: Calibration, pooled: Vectors, left: Rows, right: Rows, threshold: float) -> pa.Table:
    """Scores the pairs (left[n], right[n]) of rows of `pooled` as /similarity does; those at or above the threshold."""
    if not len(left):
        return PAIRS.empty_table()
    needed, places = np.unique(np.concatenate([left, right]), return_inverse=True)
    a, b = np.split(places.astype(np.intp), 2)
    scores = score(calibration, [], pooled[needed], a, b, brought=True)  # `brought`: without the out-of-domain test
    none = np.full(len(left), np.nan)
    values: dict[str, npt.NDArray[Any]] = {
        "i": left, "j": right, "similarity": scores.similarity, "cosine": scores.cosine,
        "percentile": none if scores.percentile is None else scores.percentile,
        "probability": none if scores.probability is None else scores.probability,
    }  # fmt: skip
    reached = scores.similarity >= np.float32(threshold)
    return pa.table([pa.array(values[one.name][reached], one.type, from_pandas=True) for one in PAIRS], schema=PAIRS)


def numbered(pairs: pa.Table, rows: Rows, kept: pa.Table) -> pa.Table:
    """The pairs in order, with the numbers of their rows in the input, and the kept columns of both."""
    pairs = pairs.sort_by([("i", "ascending"), ("j", "ascending")])
    ends = {end: pairs[end].to_numpy() for end in ("i", "j")}
    columns = {name: pairs[name] for name in pairs.column_names}
    columns |= {end: pa.array(rows[at], pa.int64()) for end, at in ends.items()}
    columns |= {
        f"{name}_{end}": kept[name].take(pa.array(at)) for name in kept.column_names for end, at in ends.items()
    }
    return pa.table(columns)
