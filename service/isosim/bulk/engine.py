"""An engine reads one part of the input and makes the part's output file. It does not depend on Ray."""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from isosim.arrays import Rows, Vectors
from isosim.bulk.inputs import Part, Records, fault, faults, vector_fault
from isosim.bulk.places import Place, reaching
from isosim.bulk.plan import ERROR, ROW, Plan
from isosim.bulk.readers import reader_of
from isosim.bulk.writing import UNREADABLE, VECTOR, to_bytes, vector_column
from isosim.domains.calibrations import load_calibration
from isosim.encoders.brought import vector_of
from isosim.encoders.onnx_engine import CUDA
from isosim.encoders.store import EncoderStore
from isosim.encoders.texts import PooledVector
from isosim.errors import Conflict, InvalidInput, TokenizerFailure
from isosim.jobs.offline import open_texts
from isosim.scoring.calibration import DomainRef
from isosim.scoring.similarity import flags_of, normalized, score

# Vectors of a part's usable rows, as three values:
# 1. the vectors (N, D),
# 2. for each vector, a PooledVector with the text's flags and number of tokens,
# 3. for each text column, an array (rows,) with the index of each row's vector.
Sides = tuple[Vectors, list[PooledVector], list[Rows]]
PROVIDERS = {"cpu": ["CPUExecutionProvider"], "gpu": [CUDA, "CPUExecutionProvider"]}


@dataclass(frozen=True)
class Outcome:
    """The result of one part."""

    number: int
    rows: int
    failed: dict[str, int]  # reason -> number of rows that failed for this reason
    sentences: int  # number of distinct texts; each was encoded once
    tokens: int
    bytes: int
    sha256: str
    seconds: float
    node: str = ""  # id of the Ray node that computed the part


class Engine:
    """Encoder, calibration and reader; they are opened once and used for many parts."""

    def __init__(self, plan: Plan, store: Path, threads: int, seed: Path | None = None) -> None:
        """Opens the encoder and the version that the plan names.

        Raises:
            Unavailable, CorruptArtifact, NotFound: the encoder or the version is missing, or cannot be opened.
        """
        self.plan = plan
        artifact = EncoderStore.at(store, seed).find(f"{plan.encoder}@{plan.digest}")
        self.fault: Callable[[Any], str | None] = partial(fault, longest=plan.options.max_characters)
        if plan.options.vectors:
            self.fault = partial(vector_fault, dim=artifact.spec.dim, unit=artifact.unit_vectors)
        else:
            self.encode = open_texts(
                artifact,
                threads,
                providers=PROVIDERS[plan.device],
                batch_tokens=plan.batch_tokens,
                # None: all texts of a part are sorted by length before they are batched. Another `window` would change
                # the batches, and the last bits of the vectors. If `window` changes, increase FORMAT (plan.py).
                window=None,
            )
        self.dim = artifact.spec.dim
        self.calibration = load_calibration(
            store, artifact, DomainRef(plan.domain, plan.version), PROVIDERS[plan.device]
        )
        self.place = Place(plan.input[0].path)
        self.reader = reader_of(plan.options.form, plan.options.delimiter)

    def __call__(self, part: Part, *, lenient: bool) -> tuple[bytes, Outcome]:
        """The bytes of the part's output file, and its outcome.

        Raises:
            InvalidInput: a row is unusable, and `lenient` is false.
            Conflict: the input has changed since the job began.
        """
        began = time.perf_counter()
        plan, options = self.plan, self.plan.options
        path = plan.input[part.source].path
        with reaching(path):
            records = self.reader.read(self.place, path, part, options.columns, options.keep)
        if any(len(cells) != part.rows for cells in records.cells.values()):
            raise Conflict(f"{path} has changed since the job began")
        reasons = faults(records, part.rows, self.fault)
        if not lenient:
            self._check(path, part, records, reasons)
        good = np.flatnonzero([reason is None for reason in reasons])
        pooled, texts, sides = (self._brought if options.vectors else self._encoded)(records, good.tolist())
        make = self._embedded if plan.task == "embed" else self._scored
        columns = make(pooled, texts, sides, good, part.rows)
        columns = {
            ROW: pa.array(np.arange(part.first, part.first + part.rows)),
            **{name: records.kept[name] for name in options.keep},
            **columns,
            ERROR: pa.array(reasons, pa.string()),
        }
        content = to_bytes(pa.table(columns), options.write, plan.provenance())
        failed = Counter(reason for reason in reasons if reason is not None)
        tokens = sum(text.tokens for text in texts)
        digest = hashlib.sha256(content).hexdigest()
        spent = time.perf_counter() - began
        return content, Outcome(
            part.number, part.rows, dict(failed), len(texts), tokens, len(content), digest, round(spent, 3)
        )

    def _encoded(self, records: Records, good: list[int]) -> Sides:
        """Encodes the distinct texts of the rows `good`."""
        columns, distinct = self.plan.options.columns, dict[str, int]()
        for row in good:
            for name in columns:
                distinct.setdefault(records.cells[name][row], len(distinct))
        try:
            encodings = self.encode(list(distinct))
        except TokenizerFailure as error:
            raise TokenizerFailure(f"{error} (in one of {len(distinct)} distinct texts)") from error
        sides = [np.array([distinct[records.cells[name][row]] for row in good], np.intp) for name in columns]
        return encodings.vectors, encodings.texts(), sides

    def _brought(self, records: Records, good: list[int]) -> Sides:
        """Reads the vectors of the rows `good`."""
        columns = self.plan.options.columns
        pooled = np.empty((len(columns) * len(good), self.dim), np.float32)
        for number, (name, row) in enumerate(product(columns, good)):
            pooled[number] = vector_of(records.cells[name][row])
        sides = [np.arange(len(good)) + number * len(good) for number in range(len(columns))]
        return pooled, [PooledVector(vector, 0, truncated=False) for vector in pooled], sides

    def _check(self, path: str, part: Part, records: Records, reasons: Sequence[str | None]) -> None:
        for row, reason in enumerate(reasons):
            if reason is not None:
                more = f" ({records.broken[row]})" if row in records.broken else ""
                raise InvalidInput(
                    f"{path}, row {part.first + row} of the input: {reason}{more}; with --on-error null such rows get "
                    "null results"
                )

    def _embedded(
        self, pooled: Vectors, texts: list[PooledVector], sides: Sequence[Any], good: Any, count: int
    ) -> dict[str, pa.Array]:
        vectors = self.calibration.latents(pooled) if self.plan.options.space == "calibrated" else pooled
        vectors = normalized(vectors) if self.plan.options.normalize else vectors
        flags = {
            "truncated": np.array([text.truncated for text in texts], bool),
            UNREADABLE: np.array([text.unreadable for text in texts], bool),
        }
        return {
            VECTOR: vector_column(vectors[sides[0]], good, count),
            **{name: spread(flag[sides[0]].tolist(), good, count, pa.bool_()) for name, flag in flags.items()},
        }

    def _scored(
        self, pooled: Vectors, texts: list[PooledVector], sides: Sequence[Any], good: Any, count: int
    ) -> dict[str, pa.Array]:
        if not len(good):
            numbers = {n: pa.nulls(count, pa.float32()) for n in ("cosine", "similarity")}
            numbers |= {n: pa.nulls(count, pa.float64()) for n in ("percentile", "probability")}
            numbers["extrapolated"] = pa.nulls(count, pa.bool_())
            return {**numbers, **{n: pa.nulls(count, pa.list_(pa.string())) for n in ("flags_a", "flags_b")}}
        left, right = sides
        scores = score(self.calibration, texts, pooled, left, right, brought=self.plan.options.vectors)
        flags_a, flags_b = flags_of(texts, scores, left, right)
        rates = {"percentile": scores.percentile, "probability": scores.probability}
        beyond = None if scores.extrapolated is None else scores.extrapolated.tolist()
        absent = pa.nulls(count, pa.float64())
        return {
            "cosine": spread(scores.cosine, good, count, pa.float32()),
            "similarity": spread(scores.similarity, good, count, pa.float32()),
            **{name: absent if v is None else spread(v, good, count, pa.float64()) for name, v in rates.items()},
            "extrapolated": pa.nulls(count, pa.bool_()) if beyond is None else spread(beyond, good, count, pa.bool_()),
            "flags_a": spread(flags_a, good, count, pa.list_(pa.string())),
            "flags_b": spread(flags_b, good, count, pa.list_(pa.string())),
        }


def spread(values: Any, rows: Any, count: int, kind: pa.DataType) -> pa.Array:
    """A column of `count` entries. Entry `rows[i]` is `values[i]`. All other entries are null."""
    every: list[Any] = [None] * count
    for row, value in zip(rows.tolist(), values, strict=True):
        every[row] = value
    return pa.array(every, kind)
