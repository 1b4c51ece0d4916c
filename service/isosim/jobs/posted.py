"""Posted text, labels and vectors: `Spool` holds them until they are in the store, a worker reads them as `Posted`.

Text and labels are lines of JSON. A string is a text. A list is a labelled pair: [text, text, label] or
[text, text, label, weight]. Vectors are in a separate file. In a labelled pair of vectors, each text is replaced by a
vector in base64, or by the vector's row number in this file.

In a match, `lines` holds the rows of the first file and `second` those of the second one, as lists: the row's number in
its file, its text, and the cells of the other columns.
"""

import contextlib
import hashlib
import os
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import orjson

from isosim.errors import InvalidInput
from isosim.jobs.job import LabelledPair

if TYPE_CHECKING:
    from isosim.jobs.vector_files import NpyFile

LINES, VECTORS, SECOND = "lines", "vectors.npy", "second"
# A string of fewer characters than this is a row number in a vector file; a longer one is a vector in base64. A vector
# has at least 44 characters (8 dimensions), so both cannot be confused.
SHORTEST_VECTOR = 24


class Spool:
    """Temporary files for the input of a job: lines, vectors, and the lines of a second file. The system deletes them
    when they are closed or this process is killed."""

    def __init__(self) -> None:
        self.id = uuid.uuid4().hex
        self.lines, self.vectors, self.second = temporary_file(), temporary_file(), temporary_file()

    def __enter__(self) -> "Spool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for file in (self.lines, self.vectors, self.second):
            with contextlib.suppress(OSError):  # on a full disk, `file.close` cannot write its buffer
                file.close()

    def extend(self, entries: Iterable[str | LabelledPair]) -> None:
        for entry in entries:
            write(self.lines, entry)
        self.lines.flush()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(os.fstat(file.fileno()).st_size for file in (self.lines, self.vectors, self.second))

    def digest(self) -> bytes:
        """SHA-256 of each file."""
        digests = []
        for _, path in self.files():
            with path.open("rb") as file:
                digests.append(hashlib.file_digest(file, "sha256").digest())
        return b"".join(digests)

    def files(self) -> Iterator[tuple[str, Path]]:
        """Names and paths of the files; of vectors and of a second file only if there are any."""
        for name, file in ((LINES, self.lines), (VECTORS, self.vectors), (SECOND, self.second)):
            if name == LINES or os.fstat(file.fileno()).st_size:
                yield name, path_of(file)


def write(file: BinaryIO, entry: str | LabelledPair) -> None:
    """Writes a line. Raises InvalidInput for text that is not valid Unicode."""
    try:
        file.write(orjson.dumps(entry if isinstance(entry, str) else tuple(entry)) + b"\n")
    except TypeError:
        raise InvalidInput("a sentence holds half of a surrogate pair, which is not valid Unicode") from None


def temporary_file() -> BinaryIO:
    return tempfile.TemporaryFile(prefix="isosim-")


def path_of(file: BinaryIO) -> Path:
    """A path that leads to an open file without a name, from its beginning."""
    file.seek(0)  # where the system does not open the file anew, readers continue at its position
    return Path(f"/dev/fd/{file.fileno()}")


def is_row(item: str) -> bool:
    """Whether an item is a row number; a vector in base64 is longer than any row number."""
    return item.isdecimal() and len(item) < SHORTEST_VECTOR


@dataclass(frozen=True)
class Posted:
    """Sentences and labelled pairs that were posted for a calibration, in order.

    With `vectors`, `texts` holds the text of each row or is empty. A labelled pair then consists of two row numbers or
    two base64 vectors.
    """

    texts: Iterable[str]
    labels: Sequence[LabelledPair] = ()
    vectors: "NpyFile | None" = None

    @classmethod
    def from_folder(cls, folder: Path) -> "Posted":
        """Reads what `Spool` has written; `texts` can be read once."""
        from isosim.jobs.vector_files import NpyFile  # noqa: PLC0415 - numpy takes 0.12 s

        def entries() -> Iterator[Any]:
            with (folder / LINES).open("rb") as lines:
                yield from map(orjson.loads, lines)

        vectors = folder / VECTORS
        return cls(
            (entry for entry in entries() if isinstance(entry, str)),
            [LabelledPair(*entry) for entry in entries() if isinstance(entry, list)],
            NpyFile(vectors, "the posted vectors") if vectors.exists() else None,
        )


def posted_rows(folder: Path) -> list[Path]:
    """The files of a match, one or two."""
    return [path for name in (LINES, SECOND) if (path := folder / name).exists()]
