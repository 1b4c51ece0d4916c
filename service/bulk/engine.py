"""One engine: a part of the input in, the bytes of its output file out. Knows nothing of Ray."""

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from service.adapters.calibration_source import StoredCalibrations
from service.adapters.domain_store import DomainStore
from service.adapters.encoder_store import EncoderStore
from service.adapters.onnx_engine import CUDA, OnnxCalibrator, OnnxEncoder
from service.adapters.tokenizer import FastTokenizer
from service.bulk.inputs import Part, Records, reader_of
from service.bulk.places import Place, reaching
from service.bulk.plan import Plan
from service.bulk.rows import faults
from service.bulk.vectors import Vectors
from service.bulk.writing import UNREADABLE, VECTOR, encoded, vector_column
from service.core.calibration import Calibration, DomainRef, Matrix
from service.core.embedding import Embedded, Timings
from service.core.errors import Conflict, InvalidInput
from service.core.registry import Registry
from service.core.similarity import flags_of, normalized, score
from service.core.texts import Pooled, VectorCodec

ROW, ERROR = "row", "error"
PROVIDERS = {"cpu": ["CPUExecutionProvider"], "gpu": [CUDA, "CPUExecutionProvider"]}


@dataclass(frozen=True)
class Outcome:
    """What became of a part."""

    number: int
    rows: int
    failed: dict[str, int]  # rows without a result, by reason
    sentences: int  # encoded: distinct texts
    tokens: int
    bytes: int
    sha256: str
    seconds: float
    node: str = ""  # of the cluster


def result_columns(plan: Plan) -> tuple[str, ...]:
    """The columns a plan adds to those kept."""
    if plan.task == "embed":
        return (ROW, VECTOR, "truncated", UNREADABLE, ERROR)
    return (ROW, "cosine", "similarity", "percentile", "probability", "extrapolated", "flags_a", "flags_b", ERROR)


class Engine:
    """Encoder, calibration and readers, opened once."""

    def __init__(self, plan: Plan, store: Path, threads: int) -> None:
        """Raises Unavailable, CorruptArtifact or NotFound where the store has not what the plan names."""
        self.plan = plan
        artifact = EncoderStore(store).find(f"{plan.encoder}@{plan.digest}")
        providers = PROVIDERS[plan.device]
        self.vectors = Vectors(
            FastTokenizer(artifact.tokenizer, artifact.spec.max_length, artifact.every_prompt),
            OnnxEncoder(artifact.encoder, providers, threads, artifact.spec.pad_token_id),
            VectorCodec(plan.options.precision, artifact.spec.dim),
            artifact.spec.prompt,
            plan.batch_tokens,
        )
        self.calibration = calibration_of(store, artifact.calibrator, plan)
        self.place = Place(plan.input[0].path)
        self.reader = reader_of(plan.options.form, plan.options.delimiter)

    def __call__(self, part: Part, *, lenient: bool) -> tuple[bytes, Outcome]:
        """Raises InvalidInput where a row has no result and `lenient` is false; Conflict where the input changed."""
        began = time.perf_counter()
        plan, options = self.plan, self.plan.options
        path = plan.input[part.source].path
        with reaching(path):
            records = self.reader.read(self.place, path, part, options.columns, options.keep)
        if any(len(cells) != part.rows for cells in records.cells.values()):
            raise Conflict(f"{path} has changed since the job began")
        reasons = faults(records, part.rows, options.max_characters)
        if not lenient:
            self._check(path, part, records, reasons)
        good = np.flatnonzero([reason is None for reason in reasons])
        distinct: dict[str, int] = {}
        for row in good.tolist():
            for name in options.columns:
                distinct.setdefault(records.cells[name][row], len(distinct))
        pooled, texts = self.vectors(list(distinct))
        sides = [np.array([distinct[records.cells[n][row]] for row in good.tolist()], np.intp) for n in options.columns]
        make = self._embedded if plan.task == "embed" else self._scored
        columns = make(pooled, texts, sides, good, part.rows)
        columns = {
            ROW: pa.array(np.arange(part.first, part.first + part.rows)),
            **{name: records.kept[name] for name in options.keep},
            **columns,
            ERROR: pa.array(reasons, pa.string()),
        }
        content = encoded(pa.table(columns), options.write, plan.provenance())
        failed = Counter(reason for reason in reasons if reason is not None)
        tokens = sum(text.tokens for text in texts)
        digest = hashlib.sha256(content).hexdigest()
        spent = time.perf_counter() - began
        return content, Outcome(
            part.number, part.rows, dict(failed), len(texts), tokens, len(content), digest, round(spent, 3)
        )

    def _check(self, path: str, part: Part, records: Records, reasons: Sequence[str | None]) -> None:
        for row, reason in enumerate(reasons):
            if reason is not None:
                more = f" ({records.broken[row]})" if row in records.broken else ""
                raise InvalidInput(
                    f"{path}, row {part.first + row} of the input: {reason}{more}; --on-error null goes on without it"
                )

    def _embedded(
        self, pooled: Matrix, texts: list[Pooled], sides: Sequence[Any], good: Any, count: int
    ) -> dict[str, pa.Array]:
        found = self.calibration.latents(pooled) if self.plan.options.space == "calibrated" else pooled
        found = normalized(found) if self.plan.options.normalize else found
        flags = {
            "truncated": np.array([text.truncated for text in texts], bool),
            UNREADABLE: np.array([text.unreadable for text in texts], bool),
        }
        return {
            VECTOR: vector_column(found[sides[0]], good, count),
            **{name: spread(flag[sides[0]].tolist(), good, count, pa.bool_()) for name, flag in flags.items()},
        }

    def _scored(
        self, pooled: Matrix, texts: list[Pooled], sides: Sequence[Any], good: Any, count: int
    ) -> dict[str, pa.Array]:
        if not len(good):
            numbers = {n: pa.nulls(count, pa.float32()) for n in ("cosine", "similarity")}
            numbers |= {n: pa.nulls(count, pa.float64()) for n in ("percentile", "probability")}
            numbers["extrapolated"] = pa.nulls(count, pa.bool_())
            return {**numbers, **{n: pa.nulls(count, pa.list_(pa.string())) for n in ("flags_a", "flags_b")}}
        left, right = sides
        found = score(self.calibration, texts, pooled, left, right)
        flags = flags_of(Embedded(texts, pooled, np.arange(len(texts)), Timings()), found)
        rates = {"percentile": found.percentile, "probability": found.probability}
        beyond = None if found.extrapolated is None else found.extrapolated.tolist()
        absent = pa.nulls(count, pa.float64())
        return {
            "cosine": spread(found.cosine, good, count, pa.float32()),
            "similarity": spread(found.similarity, good, count, pa.float32()),
            **{name: absent if v is None else spread(v, good, count, pa.float64()) for name, v in rates.items()},
            "extrapolated": pa.nulls(count, pa.bool_()) if beyond is None else spread(beyond, good, count, pa.bool_()),
            "flags_a": spread([flags[row] for row in left], good, count, pa.list_(pa.string())),
            "flags_b": spread([flags[row] for row in right], good, count, pa.list_(pa.string())),
        }


def spread(values: Any, rows: Any, count: int, kind: pa.DataType) -> pa.Array:
    """Values at `rows` of a column of `count` entries; null in the others."""
    every: list[Any] = [None] * count
    for row, value in zip(rows.tolist(), values, strict=True):
        every[row] = value
    return pa.array(every, kind)


def calibration_of(store: Path, calibrator: Path, plan: Plan) -> Calibration:
    """The version that the plan pinned."""
    source = StoredCalibrations(DomainStore(store), OnnxCalibrator(calibrator, PROVIDERS[plan.device]), plan.digest)
    registry = Registry(source, plan.digest)
    return asyncio.run(registry.resolve(DomainRef(plan.domain, plan.version)))
