"""Where vectors go as they are made: a NumPy file, lines of JSON in a file, or standard output."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np

from service.commands.console import dumped
from service.core.calibration import Matrix


class VectorFile(Protocol):
    def write(self, vectors: Matrix) -> None: ...


class JsonVectors:
    """A list of numbers a line."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file

    def write(self, vectors: Matrix) -> None:
        self.file.write(b"".join(dumped(vector) + b"\n" for vector in vectors))
        self.file.flush()


class NumpyVectors:
    """Rows of a `.npy` file; its header, which NumPy pads for this, gets the count at the end."""

    def __init__(self, file: BinaryIO, dim: int) -> None:
        self.file, self.dim, self.count = file, dim, 0
        self._head()
        self._length = file.tell()

    def _head(self) -> None:
        shape = {"descr": "<f4", "fortran_order": False, "shape": (self.count, self.dim)}
        np.lib.format.write_array_header_1_0(self.file, shape)

    def write(self, vectors: Matrix) -> None:
        self.file.write(np.ascontiguousarray(vectors, "<f4").tobytes())
        self.count += len(vectors)

    def finish(self) -> None:
        self.file.seek(0)
        self._head()
        if self.file.tell() != self._length:
            raise OSError(f"NumPy's header for {self.count} rows does not fit where the one for none was")


@contextmanager
def vector_file(output: Path | None, dim: int) -> Iterator[VectorFile]:
    """Yields what takes the vectors. A named file appears whole, once everything was written, or not at all."""
    if output is None:
        yield JsonVectors(sys.stdout.buffer)
        return
    part = output.with_name(f".{output.name}.part")
    try:
        with part.open("wb") as file:
            if output.suffix == ".npy":
                rows = NumpyVectors(file, dim)
                yield rows
                rows.finish()
            else:
                yield JsonVectors(file)
        part.replace(output)
    finally:
        part.unlink(missing_ok=True)
