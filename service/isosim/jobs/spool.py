"""Stores the text and vectors of a calibration while they arrive. A job is created from them afterwards."""

import contextlib
import hashlib
import os
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from isosim.jobs.job import LabelledPair
from isosim.store.artifacts import claim, fsync


class Spool:
    """Writes input to disk and hashes it. A job created from the input gets the spool's id.

    Text and labels are lines of JSON. A string is a text. A list is a labelled pair: [text, text, label] or
    [text, text, label, weight]. Vectors are in a separate file. In a labelled pair of vectors, each text is replaced by
    a vector in base64, or by the vector's row number in this file.
    """

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.id = uuid.uuid4().hex
        self._path = root / f".spool-{self.id}"
        self.size = 0  # bytes written so far
        self._file = self._opened()
        self._vectors: BinaryIO | None = None
        self._hash = hashlib.sha256()
        # Texts, labels and vectors have separate hashes, because they may arrive interleaved in any order.
        self._hashes = {name: hashlib.sha256() for name in ("vectors", "texts", "labels")}

    def _opened(self) -> BinaryIO:
        """Opens the file for the lines of text and labels."""
        file = self._path.open("wb")
        claim(file.fileno())
        return file

    def __enter__(self) -> "Spool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Deletes text and vectors that did not become a job."""
        try:
            self._path.unlink(missing_ok=True)
            self.vectors.unlink(missing_ok=True)
        finally:
            for file in (self._file, self._vectors):
                with contextlib.suppress(OSError):  # on a full disk, `file.close` cannot write its buffer
                    if file is not None:
                        file.close()

    def extend(self, texts: Iterable[str]) -> None:
        self._write("texts", texts)

    def extend_labels(self, pairs: Iterable[LabelledPair]) -> None:
        self._write("labels", map(tuple, pairs))  # orjson knows no NamedTuple

    @property
    def vectors(self) -> Path:
        """The file of vectors. It does not exist before the first vectors are written."""
        return self._path.with_suffix(".npy")

    def extend_vectors(self, content: bytes) -> None:
        """Appends bytes to the file of vectors."""
        if self._vectors is None:
            self._vectors = self.vectors.open("w+b")
            claim(self._vectors.fileno())
        self._hashes["vectors"].update(content)
        self.size += len(content)
        self._vectors.write(content)

    def end_vectors(self, begin: bytes = b"") -> None:
        """Overwrites the header in the file of vectors with `begin`, a header with the final number of vectors. Then
        flushes the file. `begin` is empty for a posted `.npy`, whose own header is kept."""
        if self._vectors is not None:
            self._vectors.seek(0)
            self._vectors.write(begin)
            self._vectors.flush()

    def _write(self, kind: str, entries: Iterable[str | tuple[Any, ...]]) -> None:
        lines = b"".join(orjson.dumps(entry) + b"\n" for entry in entries)
        self._hash.update(lines)
        self._hashes[kind].update(lines)
        self.size += len(lines)
        self._file.write(lines)

    def digest(self) -> bytes:
        if self._vectors is None:
            return self._hash.digest()
        return b"".join(one.digest() for one in self._hashes.values())

    def move_to(self, place: Path, vectors: Path) -> None:
        """Moves the files to their final places. Even after a crash, a file in its final place is complete."""
        if self._vectors is not None:
            self._vectors.flush()
            os.fsync(self._vectors.fileno())
            self.vectors.rename(vectors)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._path.rename(place)
        fsync(place.parent)
