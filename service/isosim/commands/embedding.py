"""`isosim embed`: compute vectors of sentences in files and pipes."""

import itertools
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO, Literal, Protocol

import numpy as np
import typer

from isosim.arrays import Vectors
from isosim.commands.client import Server, connected, pinned
from isosim.commands.files import Column, limits, notices
from isosim.commands.pairs import PIECE, pieces
from isosim.commands.shared import AsJson, EncoderId, Store, versions, whole
from isosim.commands.terminal import bar, dumped, print_json, remark
from isosim.errors import EmptyInput
from isosim.jobs.sandbox import Reading, read_path
from isosim.jobs.tables import kind_of_name
from isosim.jobs.text_lines import STDIN, TextLines, opened
from isosim.settings import Settings

SUFFIXES = (".npy", ".jsonl")


def embed(
    file: Annotated[
        Path, typer.Argument(help="text with one sentence per line, or a table; - reads standard input")
    ] = STDIN,
    column: Column = None,
    domain: Annotated[str, typer.Option(help="name, name@3 or name@previous", autocompletion=versions)] = "default",
    space: Annotated[
        Literal["calibrated", "raw"],
        typer.Option(help="calibrated: by the domain's calibration; raw: the frozen encoder's vectors"),
    ] = "calibrated",
    normalize: Annotated[bool, typer.Option(help="scale vectors to unit length")] = True,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="the .npy or .jsonl file to write; default: JSON lines on standard output"),
    ] = None,
    server: Server = None,
    model_store: Store = None,
    encoder: EncoderId = None,
    as_json: AsJson = False,
) -> None:
    """Turn sentences into vectors.

    Writes one row of the .npy, or one JSON list, for each line of the text or row of the table, in the same order. The
    input may have any length. With --json and --output, prints a summary as JSON.
    """
    if output is not None and output.suffix not in SUFFIXES:
        raise typer.BadParameter(f"{output}: the name must end in {' or '.join(SUFFIXES)}", param_hint="--output")
    with (
        text_of(file, column, Settings().max_characters) as text,
        connected(server, model_store=model_store, encoder=encoder) as client,
    ):
        version = pinned(client, domain)
        with vector_file(output) as rows, bar("embedding") as progress:
            done = 0
            for piece in itertools.chain.from_iterable(pieces(block, str) for block in text.blocks()):
                check(piece, text.name, done)
                given = client.embed(piece, domain=str(version), space=space, normalize=normalize)
                rows.write(np.array(given, np.float32))
                done += len(piece)
                progress(f"{done:,} lines", text.share)
            if not done:
                raise EmptyInput(f"{text.name} is empty")
    if output is None:
        return
    if as_json:
        print_json({"output": str(output), "rows": done, "dim": len(given[0]), "space": space, **version._asdict()})
    else:
        remark(f"{output}: {done:,} × {len(given[0])}, {space}, {version}")


class Cells:
    """Sentences of a table's column, with the interface of `TextLines`."""

    share = None

    def __init__(self, name: str, sentences: Iterable[str]) -> None:
        self.name, self.number, self.sentences = name, 0, iter(sentences)

    def blocks(self) -> Iterator[list[str]]:
        while block := list(itertools.islice(self.sentences, PIECE)):
            self.number += len(block)
            yield block


@contextmanager
def text_of(path: Path, column: str | None, longest: int) -> Iterator[TextLines | Cells]:
    """Opens a text file, or the sentences of a table.

    Raises:
        EmptyInput: a row of the table has no usable sentence. It cannot be skipped, because each row gets a vector.
    """
    if column is None and kind_of_name(path.name) in (None, "text"):
        with opened(path, longest) as text:
            yield text
        return
    with read_path(path, Reading("entries", column), limits()) as (facts, sentences):
        notices(path, facts)
        if facts["empty"] or facts["too_long"]:
            raise EmptyInput(
                f"{path}: the column {facts['column']!r} is empty in {facts['empty']:,} rows and too long in "
                f"{facts['too_long']:,} (more than {longest:,} characters); remove these rows, because each row must "
                "get a vector"
            )
        yield Cells(str(path), sentences)


def check(chunk: list[str], name: str, before: int) -> None:
    """Raises EmptyInput for an empty line, because each line must get a vector."""
    for number, line in enumerate(chunk, before + 1):
        if not line.strip():
            raise EmptyInput(
                f"{name}, line {number}: empty; each line must contain a sentence, because each gets a vector"
            )


class VectorFile(Protocol):
    def write(self, vectors: Vectors) -> None: ...


class JsonVectors:
    """Writes vectors as JSON, one list of numbers in each line."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file

    def write(self, vectors: Vectors) -> None:
        self.file.write(b"".join(dumped(vector) + b"\n" for vector in vectors))
        self.file.flush()


class NumpyVectors:
    """Writes vectors as rows of a `.npy` file.

    The header says 0 rows until `finish` writes a new header with the true number of rows. Both headers have the same
    length, because NumPy pads them.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.dim, self.count, self._length = file, 0, 0, 0

    def _head(self) -> None:
        shape = {"descr": "<f4", "fortran_order": False, "shape": (self.count, self.dim)}
        np.lib.format.write_array_header_1_0(self.file, shape)

    def write(self, vectors: Vectors) -> None:
        if not self.count:
            self.dim = vectors.shape[1]
            self._head()
            self._length = self.file.tell()
        self.file.write(np.ascontiguousarray(vectors, "<f4").tobytes())
        self.count += len(vectors)

    def finish(self) -> None:
        self.file.seek(0)
        self._head()
        if self.file.tell() != self._length:
            raise OSError(f"NumPy's header for {self.count} rows is longer than the header for 0 rows that it replaces")


@contextmanager
def vector_file(output: Path | None) -> Iterator[VectorFile]:
    """Yields a writer for vectors. The output file appears under its name only when all vectors are written."""
    if output is None:
        yield JsonVectors(sys.stdout.buffer)
        return
    with whole(output) as file:
        if output.suffix == ".npy":
            rows = NumpyVectors(file)
            yield rows
            rows.finish()
        else:
            yield JsonVectors(file)
