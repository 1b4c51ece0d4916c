"""Checks posted vectors and writes them to disk while they stream in: `.npy`, or NDJSON with a vector in each line."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
from pydantic import ValidationError

from isosim.api.calibration.intake import LABELLED, MAX_LABELS, Limits, Lines, flow_notices
from isosim.api.validation import labelled_pair_fault
from isosim.arrays import Vectors
from isosim.encoders.brought import brought_vector, encoded
from isosim.encoders.store import EncoderArtifact
from isosim.errors import EmptyInput, InvalidInput
from isosim.jobs.job import LabelledPair
from isosim.jobs.posted import Spool
from isosim.jobs.requirements import STEADY_FLOW, LabelSummary, check_sentences, fewest_sentences
from isosim.jobs.text_lines import check_decoded
from isosim.jobs.vector_files import NpyFile, checked_blocks, hash_of

CHARACTERS = 32  # maximum number of characters of a JSON number
ENTRY = 'expected {"vector": […]}, {"vector": […], "text": "…"} or {"a": …, "b": …, "label": 1}'


class VectorIntake(Lines):
    """Writes posted vectors to a spool, as `Intake` does with text. Not thread-safe.

    A labelled pair consists of two vectors, or of the row numbers (from 0) of two posted vectors.
    """

    def __init__(
        self, spool: Spool, limits: Limits, artifact: EncoderArtifact, *, npy: bool, kind: str = "matches"
    ) -> None:
        self.artifact, self.dim = artifact, artifact.spec.dim
        super().__init__(2 * CHARACTERS * self.dim + 24 * limits.characters + 1024)
        self.spool, self.limits, self.npy = spool, limits, npy
        self.sentences = 0  # number of vectors
        self.labels = 0
        self._summary = LabelSummary(kind)
        self._highest: tuple[int, int] = (-1, 0)  # highest row number in a labelled pair, and the pair's line
        self._texts = False
        self._seen: set[int] = set()  # hashes of distinct vectors; no more are added once there are `_enough`
        self._enough = max(STEADY_FLOW, fewest_sentences("whitening", self.dim))

    def feed(self, chunk: bytes) -> None:
        """Takes a part of the body. Raises InvalidInput for an invalid line; a `.npy` is checked by `close`."""
        if self.npy:
            self.spool.extend_vectors(chunk)
        else:
            super().feed(chunk)

    def _check_count(self) -> None:
        if self.sentences > self.limits.sentences:
            raise InvalidInput(f"more than {self.limits.sentences:,} vectors were posted")

    def close(self) -> None:
        """Ends the intake; reads all vectors back from disk and checks them.

        Raises:
            InvalidInput: a `.npy` does not match its header, or a row is not a valid vector; the message names the row.
            EmptyInput: no vector was posted.
        """
        self.take_rest()
        if not self.spool.size or not (self.npy or self.sentences):
            raise EmptyInput("no vector was posted")
        self.spool.end_vectors(b"" if self.npy else self._header(self.sentences))
        file = NpyFile(self.spool.vectors, "the posted .npy" if self.npy else "the posted lines")
        self.sentences = len(file)
        self._check_count()
        for block in checked_blocks(file, self.dim, unit=self.artifact.unit_vectors):
            if len(self._seen) < self._enough:
                self._seen.update(hash_of(row) for row in block)
        row, line = self._highest
        if row >= len(file):
            raise InvalidInput(f"line {line}: there is no row {row}; the posted vectors are rows 0 to {len(file) - 1}")
        if self.labels:
            self._summary.check()

    def _header(self, rows: int) -> bytes:
        written = io.BytesIO()
        facts = {"descr": "<f4", "fortran_order": False, "shape": (rows, self.dim)}
        np.lib.format.write_array_header_1_0(written, facts)
        return written.getvalue()

    def take(self, lines: Sequence[bytes]) -> None:
        vectors: list[Vectors] = []
        texts: list[str] = []
        for line in lines:
            self.lines += 1
            try:
                if line.strip():
                    self._add(line, vectors, texts)
            except InvalidInput as error:
                raise InvalidInput(f"line {self.lines}: {error}") from None
        if not vectors:
            return
        if not self.sentences:
            self.spool.extend_vectors(self._header(0))
        self.sentences += len(vectors)
        self._check_count()
        self.spool.extend_vectors(np.array(vectors, "<f4").tobytes())
        self.spool.extend(texts)

    def _add(self, line: bytes, vectors: list[Vectors], texts: list[str]) -> None:
        try:
            entry = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            hint = "; JSON has no NaN and no Infinity" if b"NaN" in line or b"Infinity" in line else ""
            raise InvalidInput(f"is not JSON: {error}{hint}") from None
        if not isinstance(entry, dict):
            raise InvalidInput(ENTRY)
        if "label" in entry:
            self._add_pair(entry)
            return
        unknown = sorted(set(entry) - {"vector", "text"})
        if unknown or "vector" not in entry:
            raise InvalidInput(f"{unknown[0][:80]!r} is not known; {ENTRY}" if unknown else ENTRY)
        vectors.append(brought_vector(entry["vector"], "the vector", self.artifact))
        text = entry.get("text")
        if self.sentences + len(vectors) == 1:
            self._texts = text is not None
        if (text is not None) != self._texts:
            has = "no text" if self._texts else "a text"
            raise InvalidInput(f"the vector has {has}, unlike those before it; give a text to all or to none")
        if text is None:
            return
        if not isinstance(text, str) or not text.strip():
            raise InvalidInput("the text is empty, or not a string")
        if len(text) > self.limits.characters:
            raise InvalidInput(f"the text has {len(text)} characters, at most {self.limits.characters} are taken")
        check_decoded(text, "the text")
        texts.append(text.strip())

    def _side(self, entry: dict[str, Any], name: str) -> str:
        """One side of a labelled pair: a row number, or a vector as base64."""
        value = entry.get(name)
        if type(value) is int and value >= 0:
            self._highest = max(self._highest, (value, self.lines))
            return str(value)
        return encoded(brought_vector(value, f"the vector {name!r}", self.artifact))

    def _add_pair(self, entry: dict[str, Any]) -> None:
        a, b = self._side(entry, "a"), self._side(entry, "b")
        given = [a, b, entry["label"]] + ([entry["weight"]] if "weight" in entry else [])
        try:
            label, weight = LABELLED.validate_python(given)[2:]
        except ValidationError as error:
            raise InvalidInput(labelled_pair_fault(error)) from None
        pair = LabelledPair(a, b, label, weight)
        self._summary.add(pair, f"line {self.lines}")
        self.labels += 1
        if self.labels > MAX_LABELS:
            raise InvalidInput(f"more than {MAX_LABELS} labelled pairs were posted")
        self.spool.extend_labels([pair])

    def check_enough(self, method: str, dim: int) -> list[str]:
        """Returns notices for the job. Raises InvalidInput if there are too few distinct vectors for the method."""
        check_sentences(method, dim, len(self._seen), brought=True)
        return flow_notices(method, len(self._seen), "vectors")
