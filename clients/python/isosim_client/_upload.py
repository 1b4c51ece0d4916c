"""Request bodies of calibrations: a file or sentences. A body is sent in chunks, and is never in memory as a whole."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

CHUNK = 64 * 1024  # bytes of a chunk; a chunk of lines may exceed this by one line
LINES, ANY_FILE = "application/x-ndjson", "application/octet-stream"
CONTENT_TYPES = {
    ".ndjson": LINES,
    ".jsonl": LINES,
    ".npy": "application/x-npy",
    "": "text/plain",
    ".txt": "text/plain",
    ".text": "text/plain",
}
TABLES = {".csv", ".tsv", ".tab", ".parquet", ".pq", ".xlsx", ".xlsm"}

Source = os.PathLike[str] | Iterable[str]
LabelledPair = tuple[str, str, float] | tuple[str, str, float, float]
FIELDS = ("a", "b", "label", "weight")


class Upload:
    """A body that is generated while it is sent.

    Without `labels`, a file is sent unchanged; the server detects the format of a file with another suffix than those
    of CONTENT_TYPES. An iterable is sent as NDJSON, so that its sentences may contain line breaks. With `labels`, the
    body is always NDJSON: first the sentences, which are the lines of a file, then the labelled pairs.
    """

    def __init__(self, source: Source, labels: Iterable[LabelledPair] = (), *, read: bool = False) -> None:
        """Chooses how the source is sent.

        Args:
            read: if True, the server detects the file's format whatever its suffix. Needed if the request tells the
                server how to read the file, for example which `column`.

        Raises:
            TypeError: `source` is a string, which could be a path or a text. Labels are given with a table or with
                `read`. `read` is given, but `source` is not a file.
        """
        if isinstance(source, str | bytes):
            raise TypeError("give a pathlib.Path, or an iterable of sentences; a string could be a path or a sentence")
        self._source = Path(source) if isinstance(source, os.PathLike) else source
        self._labels: Sequence[LabelledPair] = list(labels)
        self._begun = False
        file = isinstance(self._source, Path)
        self.name = re.sub(
            r'[^ -~]|["\\\\]', "_", self._source.name if isinstance(self._source, Path) else "texts.ndjson"
        )
        suffix = self._source.suffix.lower() if isinstance(self._source, Path) else ".ndjson"
        if (read or suffix in TABLES) and (self._labels or not file):
            raise TypeError(
                "a table must be a file, and labels cannot be sent with it; add them afterwards with add_labels"
            )
        unlabelled = ANY_FILE if read else CONTENT_TYPES.get(suffix, ANY_FILE)
        self.content_type = LINES if self._labels else unlabelled
        self._unchanged = file and self.content_type == unlabelled

    @property
    def spent(self) -> bool:
        """Whether the body cannot be sent again. True after an iterator, for example an open file, was read."""
        return self._begun and isinstance(self._source, Iterator)

    def chunks(self) -> Iterator[bytes]:
        """Yields the body from its beginning."""
        self._begun = True
        if not isinstance(self._source, Path):
            yield from gathered(map(entry, self._source))
        elif self._unchanged:
            with self._source.open("rb") as file:
                while chunk := file.read(CHUNK):
                    yield chunk
            if self._labels:
                yield b"\n"
        else:
            with self._source.open(encoding="utf-8-sig", newline="\n") as lines:
                yield from gathered(entry(line.strip()) for line in lines)
        yield from gathered(entry(dict(zip(FIELDS, pair, strict=False))) for pair in self._labels)


def many(items: Any, name: str) -> list[Any]:
    """`items` as a list. Raises TypeError for a path, and for a single string, which `list` would split."""
    if isinstance(items, str | os.PathLike):
        raise TypeError(f"{name}: give a list, not {items!r:.80}; read the file first if it is a path")
    return list(items)


def entry(value: str | bytes | dict[str, str | float]) -> bytes:
    """A value as a line of NDJSON. Raises TypeError for bytes, such as a line of a file opened with "rb"."""
    if isinstance(value, bytes):
        raise TypeError("the sentences are bytes; give pathlib.Path(…) for a file, or strings")
    return as_json(value) + b"\n"


def as_json(value: Any) -> bytes:
    """A value as JSON in UTF-8. Raises ValueError for NaN, infinity and unpaired surrogates, which JSON lacks."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def gathered(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Joins lines into chunks of about CHUNK bytes."""
    held: list[bytes] = []
    size = 0
    for line in lines:
        held.append(line)
        size += len(line)
        if size >= CHUNK:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)
