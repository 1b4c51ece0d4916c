"""Reads lines of a text file or of standard input as they arrive; errors name the line.

The encoding is the one that a byte order mark states, otherwise UTF-8.
"""

import codecs
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from isosim.errors import EmptyInput, InvalidInput

STDIN = Path("-")
READ = 64 * 1024  # maximum bytes of one read; a read from a pipe may return fewer bytes


@dataclass
class TextLines:
    """A text that is being read. `share` is the share of its bytes read so far, None if its length is unknown."""

    name: str  # for messages; empty: they name only the line
    file: BinaryIO
    size: int = 0  # bytes; 0: unknown
    longest: int | None = None  # limit for the characters of a line
    encoding: str | None = None  # None: the one of a byte order mark, else UTF-8
    number: int = 0  # lines read so far
    seen: int = 0  # bytes read so far

    @property
    def share(self) -> float | None:
        return min(1.0, self.seen / self.size) if self.size else None

    def blocks(self) -> Iterator[list[str]]:
        """Yields the lines in order. Each list has the lines that one read from the file has completed.

        Raises:
            InvalidInput: a line cannot be decoded, or is too long.
        """
        rest, decoder = "", None
        while chunk := self.file.read(READ):
            decoder = decoder or codecs.getincrementaldecoder(self.encoding or encoding_of_mark(chunk) or "utf-8")()
            self.seen += len(chunk)
            *whole, rest = (rest + self._decoded(decoder, chunk)).split("\n")
            if whole:
                yield [self._checked(line) for line in whole]
            self._check_length(rest, self.number + 1)
        if decoder is not None and (rest := rest + self._decoded(decoder, b"")):
            yield [self._checked(rest)]

    def _place(self, number: int) -> str:
        return f"{self.name}, line {number}" if self.name else f"line {number}"

    def _decoded(self, decoder: codecs.IncrementalDecoder, chunk: bytes) -> str:
        try:
            return decoder.decode(chunk, final=not chunk)
        except UnicodeError as error:
            before = error.object[: error.start].count(b"\n") if isinstance(error, UnicodeDecodeError) else 0
            remedy = "; charset can name another encoding" if self.encoding else "; save the file as UTF-8"
            where = self._place(self.number + before + 1)
            raise InvalidInput(f"{where} is not {self.encoding or 'UTF-8'}{remedy}") from None

    def _checked(self, line: str) -> str:
        self.number += 1
        text = (line if self.number > 1 else line.removeprefix("\ufeff")).removesuffix("\r")
        check_decoded(text, self._place(self.number))
        self._check_length(text, self.number)
        return text

    def _check_length(self, text: str, number: int) -> None:
        if self.longest is not None and len(text) > self.longest:
            raise InvalidInput(
                f"{self._place(number)} is longer than {self.longest:,} characters; each sentence, or each row of a "
                "table, must have a line of its own"
            )


MARKS = {
    codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip


def encoding_of_mark(begin: bytes) -> str | None:
    """The encoding that a byte order mark at the beginning of a text states."""
    return next((name for mark, name in MARKS.items() if begin.startswith(mark)), None)


def check_decoded(text: str, where: str) -> None:
    """Raises InvalidInput if the text has NUL or escape characters: bytes of UTF-16, of ISO-2022, or of no text at all
    that were read as UTF-8. `where` names the text's place."""
    if "\x1b" in text or "\0" in text:
        raise InvalidInput(
            f"{where} has a control character (NUL or escape), so it is not text in UTF-8; send text in another "
            "encoding as a file (text/plain), or save it as UTF-8"
        )


@contextmanager
def opened(path: Path, longest: int | None = None) -> Iterator[TextLines]:
    """Opens a file, or standard input for `-`. Uses no buffer, so that a line is available as soon as it is typed or
    arrives through a pipe.

    Raises:
        OSError: the file cannot be opened.
    """
    if path == STDIN:
        with open(0, "rb", buffering=0, closefd=False) as file:
            yield TextLines("standard input", file, longest=longest)
        return
    with path.open("rb", buffering=0) as file:
        yield TextLines(str(path), file, os.fstat(file.fileno()).st_size, longest)


def read_lines(path: Path) -> list[str]:
    """All lines of a text.

    Raises:
        EmptyInput: all lines are blank.
        InvalidInput: a line is not UTF-8.
    """
    with opened(path) as lines:
        every = [line for block in lines.blocks() for line in block]
    if not any(line.strip() for line in every):
        raise EmptyInput(f"{lines.name} is empty")
    return every


def read_text(path: Path) -> list[str]:
    """Sentences for a calibration: one per line. If all lines are `score<TAB>sentence1<TAB>sentence2`: two per line."""
    lines = [line for line in read_lines(path) if line.strip()]
    if all(line.count("\t") == 2 for line in lines):
        return [text for line in lines for text in line.split("\t")[1:]]
    return lines
