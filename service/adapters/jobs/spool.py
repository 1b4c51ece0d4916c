"""Text and vectors that are still arriving, on their way into a store of jobs."""

import contextlib
import hashlib
import os
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from service.adapters.storage.artifacts import claim, fsync
from service.core.jobs.job import LabelledPair


class Spool:
    """Input on its way to disk, hashed as it passes: a line is a JSON string, or [text, text, label]; vectors go into a
    file of their own, and labelled ones are in base64.

    The job that is made of it gets its id."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.id = uuid.uuid4().hex
        self._path = root / f".spool-{self.id}"
        self._file = self._opened()
        self._vectors: BinaryIO | None = None
        self._hash = hashlib.sha256()
        # Of vectors, texts and labels by themselves: in which pieces a body arrived decides how they alternate.
        self._hashes = {name: hashlib.sha256() for name in ("vectors", "texts", "labels")}

    def _opened(self) -> BinaryIO:
        """A file for the lines of text and labels."""
        file = self._path.open("wb")
        claim(file.fileno())
        return file

    def __enter__(self) -> "Spool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Text and vectors that became no job go."""
        try:
            self._path.unlink(missing_ok=True)
            self.vectors.unlink(missing_ok=True)
        finally:
            for file in (self._file, self._vectors):
                with contextlib.suppress(OSError):  # a full disk: what was not written yet is not wanted any more
                    if file is not None:
                        file.close()

    def extend(self, texts: Iterable[str]) -> None:
        self._write("texts", texts)

    def extend_labels(self, pairs: Iterable[LabelledPair]) -> None:
        """Weights are written where there are some: earlier releases read three fields."""
        self._write("labels", (pair[:4] if pair.weight != 1 else pair[:3] for pair in pairs))

    @property
    def vectors(self) -> Path:
        """The file of vectors; there is none before the first ones are written."""
        return self._path.with_suffix(".npy")

    def extend_vectors(self, content: bytes) -> None:
        """The next bytes of that file."""
        if self._vectors is None:
            self._vectors = self.vectors.open("w+b")
            claim(self._vectors.fileno())
        self._hashes["vectors"].update(content)
        self._vectors.write(content)

    def end_vectors(self, begin: bytes = b"") -> None:
        """Other bytes at its beginning, where some are given; from now on the file can be read."""
        if self._vectors is not None:
            self._vectors.seek(0)
            self._vectors.write(begin)
            self._vectors.flush()

    def _write(self, kind: str, entries: Iterable[str | tuple[Any, ...]]) -> None:
        lines = b"".join(orjson.dumps(entry) + b"\n" for entry in entries)
        self._hash.update(lines)
        self._hashes[kind].update(lines)
        self._file.write(lines)

    def digest(self) -> bytes:
        if self._vectors is None:
            return self._hash.digest()
        return b"".join(one.digest() for one in self._hashes.values())

    def move_to(self, place: Path, vectors: Path) -> None:
        """Puts what was written there, to stay."""
        if self._vectors is not None:
            self._vectors.flush()
            os.fsync(self._vectors.fileno())
            self.vectors.rename(vectors)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._path.rename(place)
        fsync(place.parent)
