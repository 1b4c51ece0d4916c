"""Posted text, labels and vectors: `Spool` collects them while they arrive, `Posted` reads them in a worker.

Text and labels are lines of JSON. A string is a text. A list is a labelled pair: [text, text, label] or
[text, text, label, weight]. Vectors are in a separate file. In a labelled pair of vectors, each text is replaced by a
vector in base64, or by the vector's row number in this file.
"""

import contextlib
import hashlib
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from isosim.jobs.job import LabelledPair

LINES, VECTORS = "lines", "vectors.npy"


class Spool:
    """Writes input to temporary files, which the system deletes when they are closed or this process is killed. Hashes
    it too."""

    def __init__(self) -> None:
        self.id = uuid.uuid4().hex
        self.size = 0  # bytes written so far
        self._files: dict[str, BinaryIO] = {LINES: temporary_file()}
        self._hash = hashlib.sha256()
        # Texts, labels and vectors have separate hashes, because they may arrive interleaved in any order.
        self._hashes = {name: hashlib.sha256() for name in ("vectors", "texts", "labels")}

    def __enter__(self) -> "Spool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for file in self._files.values():
            with contextlib.suppress(OSError):  # on a full disk, `file.close` cannot write its buffer
                file.close()

    def extend(self, texts: Iterable[str]) -> None:
        self._write("texts", texts)

    def extend_labels(self, pairs: Iterable[LabelledPair]) -> None:
        self._write("labels", map(tuple, pairs))  # orjson knows no NamedTuple

    def _write(self, kind: str, entries: Iterable[str | tuple[Any, ...]]) -> None:
        lines = b"".join(orjson.dumps(entry) + b"\n" for entry in entries)
        self._hash.update(lines)
        self._hashes[kind].update(lines)
        self.size += len(lines)
        self._files[LINES].write(lines)

    def extend_vectors(self, content: bytes) -> None:
        """Appends bytes to the file of vectors."""
        if VECTORS not in self._files:
            self._files[VECTORS] = temporary_file()
        self._hashes["vectors"].update(content)
        self.size += len(content)
        self._files[VECTORS].write(content)

    def end_vectors(self, begin: bytes = b"") -> None:
        """Overwrites the header in the file of vectors with `begin`, a header with the final number of vectors. Then
        flushes the file. `begin` is empty for a posted `.npy`, whose own header is kept."""
        if (file := self._files.get(VECTORS)) is not None:
            file.seek(0)
            file.write(begin)
            file.flush()

    @property
    def vectors(self) -> Path:
        """The file of vectors; there must be some."""
        return path_of(self._files[VECTORS])

    def digest(self) -> bytes:
        if VECTORS not in self._files:
            return self._hash.digest()
        return b"".join(one.digest() for one in self._hashes.values())

    def files(self) -> Iterator[tuple[str, Path]]:
        """Names and paths of the complete files."""
        for name, file in self._files.items():
            file.flush()
            yield name, path_of(file)


def temporary_file() -> BinaryIO:
    return tempfile.TemporaryFile(prefix="isosim-")


def path_of(file: BinaryIO) -> Path:
    """A path that leads to an open file without a name, from its beginning."""
    file.seek(0)  # where the system does not open the file anew, readers continue at its position
    return Path(f"/dev/fd/{file.fileno()}")


class Posted:
    """A folder with what was posted for a job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def texts(self) -> Iterator[str]:
        """The posted sentences, in order."""
        return (entry for entry in self._entries() if isinstance(entry, str))

    def labels(self) -> list[LabelledPair]:
        """The posted labelled pairs, in order."""
        return [LabelledPair(*entry) for entry in self._entries() if isinstance(entry, list)]

    def _entries(self) -> Iterator[Any]:
        with (self.folder / LINES).open("rb") as lines:
            yield from map(orjson.loads, lines)

    @property
    def vectors(self) -> Path | None:
        """The file of posted vectors; None if there are none."""
        path = self.folder / VECTORS
        return path if path.exists() else None
