"""An engine makes the file of a block from the block's rows. It does not depend on Ray."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from isosim.arrays import Rows, Vectors
from isosim.bulk.job import Job, Where
from isosim.bulk.writing import to_bytes
from isosim.domains.registry import load_calibration
from isosim.encoders.brought import faults
from isosim.encoders.engines import engine_on
from isosim.encoders.store import EncoderStore
from isosim.encoders.texts import PooledVector
from isosim.jobs.offline import open_texts
from isosim.scoring.calibration import DomainRef
from isosim.scoring.similarity import flags_of, normalized, score


@dataclass(frozen=True)
class Outcome:
    """Counts of one block."""

    rows: int
    failed: Counter[str]  # reason -> number of rows without a result for this reason
    seconds: float


@dataclass(frozen=True)
class Sides:
    """The distinct texts or vectors of a block's usable rows."""

    rows: Rows  # (R,) the usable rows
    pooled: Vectors  # (N, D)
    texts: list[PooledVector]  # N
    sides: list[Rows]  # for each column (R,): index of each row's text


class Engine:
    """Encoder and calibration of a job, opened once for many blocks.

    Raises:
        Unavailable, CorruptArtifact, NotFound: the encoder or the version is missing, or cannot be opened.
    """

    def __init__(self, job: Job, where: Where, threads: int = 1) -> None:
        self.job, options = job, job.options
        artifact = EncoderStore.at(where.store, where.seed).find(f"{job.encoder}@{job.digest}")
        self.dim, self.unit = artifact.spec.dim, artifact.unit_vectors
        domain, gpu = DomainRef(job.domain, job.version), options.device == "gpu"
        self.calibration = load_calibration(where.store, artifact, domain, gpu=gpu)
        if not options.vectors:
            self.encode = open_texts(
                artifact,
                threads,
                engine=engine_on(artifact, gpu=gpu),
                batch_tokens=options.batch_tokens,
                window=None,  # all texts of a block are sorted by length before they are batched
            )

    def __call__(self, block: int, table: pa.Table) -> tuple[bytes, Outcome]:
        """The bytes of a block's file, and its counts.

        Raises:
            TokenizerFailure, BackendFailure: the texts cannot be encoded.
        """
        began, options = time.perf_counter(), self.job.options
        reasons: list[str | None] = [None] * len(table)
        sides = self._vectors(table, reasons) if options.vectors else self._texts(table, reasons)
        made = self._embedded(sides, len(table)) if options.task == "embed" else self._scored(sides, len(table))
        first = block * options.rows
        columns = {
            "row": pa.array(np.arange(first, first + len(table))),
            **{name: table[name] for name in options.keep},
            **made,
            "error": pa.array(reasons, pa.string()),
        }
        content = to_bytes(pa.table(columns), options.write, self.job.provenance())
        failed = Counter(reason for reason in reasons if reason is not None)
        return content, Outcome(len(table), failed, time.perf_counter() - began)

    def _reason(self, column: str, reason: str) -> str:
        return reason if len(self.job.options.columns) == 1 else f"{column}: {reason}"

    def _texts(self, table: pa.Table, reasons: list[str | None]) -> Sides:
        """Encodes the distinct texts of the usable rows, and fills in why the other rows are unusable."""
        columns = {name: table[name].to_pylist() for name in self.job.options.columns}
        for name, cells in columns.items():
            for row, cell in enumerate(cells):
                fault = text_fault(cell, self.job.options.max_characters)
                if fault is not None:
                    reasons[row] = reasons[row] or self._reason(name, fault)
        rows = usable(reasons)
        distinct = dict[str, int]()
        for row in rows.tolist():
            for cells in columns.values():
                distinct.setdefault(cells[row], len(distinct))
        encodings = self.encode(list(distinct))
        sides = [np.array([distinct[cells[row]] for row in rows.tolist()], np.intp) for cells in columns.values()]
        return Sides(rows, encodings.vectors, encodings.texts(), sides)

    def _vectors(self, table: pa.Table, reasons: list[str | None]) -> Sides:
        """Reads the vectors of the usable rows, and fills in why the other rows are unusable."""
        columns = {name: table[name].combine_chunks() for name in self.job.options.columns}
        matrices = []
        for name, column in columns.items():
            whole = np.asarray(pc.fill_null(pc.equal(pc.list_value_length(column), self.dim), fill_value=False))
            matrix = np.zeros((len(table), self.dim), np.float32)
            matrix[whole] = np.asarray(column.filter(pa.array(whole)).flatten()).reshape(-1, self.dim)
            matrices.append(matrix)
            bad = faults(matrix, unit=self.unit)
            for row in bad:
                fault = "unusable_vector" if whole[row] else "other_dimension" if column[row].is_valid else "null"
                reasons[row] = reasons[row] or self._reason(name, fault)
        rows = usable(reasons)
        pooled = np.concatenate([matrix[rows] for matrix in matrices])
        sides = [np.arange(len(rows)) + number * len(rows) for number in range(len(columns))]
        return Sides(rows, pooled, [PooledVector(vector, 0, truncated=False) for vector in pooled], sides)

    def _embedded(self, given: Sides, count: int) -> dict[str, pa.Array]:
        options = self.job.options
        vectors = self.calibration.latents(given.pooled) if options.space == "calibrated" else given.pooled
        vectors = normalized(vectors) if options.normalize else vectors
        texts = [given.texts[at] for at in given.sides[0].tolist()]
        return {
            "vector": vector_column(vectors[given.sides[0]], given.rows, count),
            "truncated": spread([text.truncated for text in texts], given.rows, count, pa.bool_()),
            "unreadable": spread([text.unreadable for text in texts], given.rows, count, pa.bool_()),
        }

    def _scored(self, given: Sides, count: int) -> dict[str, pa.Array]:
        rows, (left, right) = given.rows, given.sides
        flags, real = pa.list_(pa.string()), pa.float64()
        types = {"cosine": pa.float32(), "similarity": pa.float32(), "percentile": real, "probability": real}
        types |= {"extrapolated": pa.bool_(), "flags_a": flags, "flags_b": flags}
        values: dict[str, Any] = dict.fromkeys(types)
        if len(rows):
            scores = score(self.calibration, given.texts, given.pooled, left, right, brought=self.job.options.vectors)
            values |= {name: getattr(scores, name) for name in types if not name.startswith("flags")}
            values["flags_a"], values["flags_b"] = flags_of(given.texts, scores, left, right)
        return {
            name: pa.nulls(count, kind) if values[name] is None else spread(values[name], rows, count, kind)
            for name, kind in types.items()
        }


def text_fault(cell: str | None, longest: int) -> str | None:
    """Why a text cannot be embedded; None if it can. The API has the same rules."""
    if cell is None:
        return "null"
    if not cell or cell.isspace():
        return "empty"
    return "too_long" if len(cell) > longest else None


def usable(reasons: Sequence[str | None]) -> Rows:
    return np.flatnonzero([reason is None for reason in reasons])


def spread(values: Sequence[Any] | npt.NDArray[Any], rows: Rows, count: int, kind: pa.DataType) -> pa.Array:
    """A column of `count` entries. Entry `rows[i]` is `values[i]`; all other entries are null."""
    every: list[Any] = [None] * count
    for row, value in zip(rows.tolist(), values.tolist() if isinstance(values, np.ndarray) else values, strict=True):
        every[row] = value
    return pa.array(every, kind)


def vector_column(vectors: Vectors, rows: Rows, count: int) -> pa.Array:
    """A column of `count` vectors. Entry `rows[i]` is row i of `vectors` (N, D); all other entries are null."""
    dim = vectors.shape[1]
    every = np.zeros((count, dim), np.float32)
    every[rows] = vectors
    missing = np.ones(count, bool)
    missing[rows] = False
    return pa.FixedSizeListArray.from_arrays(pa.array(every.reshape(-1)), dim, mask=pa.array(missing))
