"""Request bodies of calibrations: a file or sentences. A body is sent in chunks, and is never in memory as a whole."""

from __future__ import annotations

import codecs
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

CHUNK = 64 * 1024  # bytes of a chunk; a chunk of lines may exceed this by one line
NDJSON_SUFFIXES = {".ndjson", ".jsonl"}
TEXT_SUFFIXES = {"", ".txt", ".text"}
TABLE_SUFFIXES = {".csv", ".tsv", ".tab", ".parquet", ".pq", ".xlsx", ".xlsm"}

Source = os.PathLike[str] | Iterable[str]
LabelledPair = tuple[str, str, float] | tuple[str, str, float, float]
FIELDS = ("a", "b", "label", "weight")


class Upload:
    """A body that is generated while it is sent.

    Without `labels`, a file is sent unchanged. An iterable is sent as NDJSON, so that its sentences may contain line
    breaks. With `labels`, the body is always NDJSON: first the sentences, then the labelled pairs.
    """

    def __init__(self, source: Source, labels: Iterable[LabelledPair] = (), *, read: bool = False) -> None:
        """Chooses how the source is sent.

        Args:
            read: if True, the file is sent unchanged with the content type `application/octet-stream`, whatever its
                suffix. Needed if the request tells the server how to read the file, for example which `column`.

        Raises:
            TypeError: `source` is a string, which could be a path or a text. Labels are given with a table or with
                `read`. `read` is given, but `source` is not a file.
        """
        if isinstance(source, str | bytes):
            raise TypeError("give a pathlib.Path, or an iterable of sentences; a string could be a path or a sentence")
        self._path = Path(source) if isinstance(source, os.PathLike) else None
        self._texts: Iterable[str] = () if isinstance(source, os.PathLike) else source
        self._labels: Sequence[LabelledPair] = list(labels)
        self._once = isinstance(self._texts, Iterator)
        self._begun = False
        suffix = "" if self._path is None else self._path.suffix.lower()
        lines = self._path is not None and suffix not in NDJSON_SUFFIXES
        self._as_it_is = self._path is not None and not (lines and self._labels)
        self.content_type = "text/plain" if lines and not self._labels else "application/x-ndjson"
        # Tables are sent as `application/octet-stream`: the server then detects format and encoding. A file with an
        # unknown suffix, like `corpus.de`, is sent in the same way. With labels, its lines are sent as sentences:
        # labels cannot be sent with a table.
        table = suffix in TABLE_SUFFIXES or (not self._labels and suffix not in NDJSON_SUFFIXES | TEXT_SUFFIXES)
        if not table and not self._labels and lines and self._path is not None:
            table = not is_utf8(self._path)  # the server detects the encoding of a file that is sent as a table
        if read or table:
            if self._labels or self._path is None:
                raise TypeError(
                    "a table must be a file, and labels cannot be sent with it; add them afterwards with add_labels"
                )
            self._as_it_is, self.content_type = True, "application/octet-stream"

    @property
    def spent(self) -> bool:
        """Whether the body cannot be sent again. True after an iterator, for example an open file, was read."""
        return self._once and self._begun

    def chunks(self) -> Iterator[bytes]:
        """Yields the body from its beginning."""
        self._begun = True
        if self._path is not None and self._as_it_is:
            with self._path.open("rb") as file:
                while chunk := file.read(CHUNK):
                    yield chunk
            if self._labels:
                yield b"\n"
        elif self._path is not None:
            with self._path.open(encoding="utf-8-sig", newline="\n") as lines:
                yield from gathered(entry(line.strip()) for line in lines)
        else:
            yield from gathered(entry(text, f"source[{place}]") for place, text in enumerate(self._texts))
        labels = enumerate(self._labels)
        yield from gathered(entry(dict(zip(FIELDS, pair, strict=False)), f"labels[{place}]") for place, pair in labels)


def is_utf8(path: Path) -> bool:
    """Whether a file begins with valid UTF-8. Also True if it cannot be opened: sending it raises the error."""
    try:
        with path.open("rb") as file:
            codecs.getincrementaldecoder("utf-8")().decode(file.read(CHUNK))
    except UnicodeDecodeError:
        return False
    except OSError:
        return True
    return True


def entry(value: str | bytes | dict[str, str | float], place: str = "") -> bytes:
    """A value as a line of NDJSON. Raises TypeError for bytes, such as a line of a file opened with "rb"."""
    if isinstance(value, bytes):
        raise TypeError("the sentences are bytes; give pathlib.Path(…) for a file, or strings")
    return as_json(value, place) + b"\n"


def as_json(value: Any, place: str = "") -> bytes:
    """A value as JSON in UTF-8. `place` names the value in error messages.

    Raises:
        ValueError: the value contains NaN or infinity (the message says where) or an unpaired surrogate.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError as error:
        raise ValueError(not_finite(value, place) or str(error)) from None
    return text.encode()


def not_finite(value: Any, place: str) -> str:
    """A message that names the place of the first NaN or infinity in a value; empty if there is none."""
    if isinstance(value, float) and not math.isfinite(value):
        return (
            f"{place} is {value}, which JSON cannot express; a text must be a string, and a number finite. "
            "An empty cell of a table is nan in pandas: leave out its row (dropna)"
        )
    inner: Iterable[tuple[str, Any]] = ()
    if isinstance(value, Mapping):
        inner = ((f"{place}.{name}" if place else name, part) for name, part in value.items())
    elif isinstance(value, list | tuple):
        inner = ((f"{place}[{number}]", part) for number, part in enumerate(value))
    return next((found for name, part in inner if (found := not_finite(part, name))), "")


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
