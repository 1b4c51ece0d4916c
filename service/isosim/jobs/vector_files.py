"""Reads files of vectors that were computed elsewhere: `.npy`, or a column of a Parquet file. Reads block by block."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from isosim.arrays import Rows, Vectors
from isosim.encoders.brought import faults
from isosim.errors import EmptyInput, InvalidInput, Unavailable
from isosim.jobs.requirements import MOST_SENTENCES

BLOCK = 8 * 2**20  # bytes of float32 read at once
LONGEST_HEADER = 4096  # maximum bytes of a .npy header; NumPy itself writes 118
KINDS = "float16, float32 or float64"


class VectorFile(Protocol):
    """An ordered file of vectors that all have the same dimension."""

    name: str
    dim: int

    def __len__(self) -> int: ...

    def blocks(self) -> Iterator[Vectors]:
        """Yields all rows in order, in blocks (n, D). Each block is a copy.

        Raises:
            InvalidInput: a row is not a vector; the message names the row.
        """

    def texts(self) -> Iterator[str] | None:
        """The text of each vector, in order; None if the file has no texts."""


class NpyFile:
    """A memory-mapped `.npy` file with an array (N, D). Pickled objects in it are never loaded."""

    def __init__(self, path: Path, name: str | None = None) -> None:
        """Raises InvalidInput if the file is no `.npy` with an array (N, D) of floats, or is shorter or longer than its
        header says. Raises EmptyInput if the file has no vectors."""
        self.path, self.name = path, name or str(path)
        try:
            array = self._array()
        except Exception as error:  # noqa: BLE001 - numpy parses the header as Python, so a bad file can raise anything
            why = (str(error).splitlines() or [type(error).__name__])[0][:200]
            raise InvalidInput(
                f"{self.name}: not a complete .npy file of numbers, as numpy.save writes it: {why}"
            ) from None
        if array.dtype.kind != "f" or array.dtype.itemsize > 8:
            raise InvalidInput(
                f"{self.name}: holds {array.dtype.name}; vectors must be {KINDS}; convert them: array.astype('float32')"
            )
        if array.ndim != 2:
            raise InvalidInput(f"{self.name}: has the shape {array.shape}; expected (vectors, dimensions)")
        if not array.size:
            raise EmptyInput(f"{self.name}: holds no vectors")
        after = path.stat().st_size - array.offset - array.nbytes
        if after:
            raise InvalidInput(f"{self.name}: {after:,} bytes follow the array that its header announces")
        self.rows, self.dim = int(array.shape[0]), int(array.shape[1])

    def _array(self) -> "np.memmap[Any, np.dtype[Any]]":
        """Maps the file: only `.npy`, unlike numpy.load, which also opens archives and pickles."""
        return np.lib.format.open_memmap(self.path, mode="r", max_header_size=LONGEST_HEADER)

    def __len__(self) -> int:
        return self.rows

    def blocks(self) -> Iterator[Vectors]:
        rows = rows_of_a_block(self.dim)
        for start in range(0, len(self), rows):
            with np.errstate(over="ignore"):  # values beyond float32 become infinite and are refused later
                # Mapped anew for each block: pages of a mapping that was read count as used memory until it is closed.
                yield np.array(self._array()[start : start + rows], np.float32, order="C")

    def texts(self) -> None:
        return None


class ParquetColumn:
    """A Parquet column of lists of numbers, and an optional column of texts; read with pyarrow (isosim[ray])."""

    def __init__(self, path: Path, column: str, text_column: str | None = None) -> None:
        """Raises InvalidInput if a column is missing or of the wrong type, EmptyInput if there are no rows, Unavailable
        if pyarrow is not installed."""
        try:
            import pyarrow.compute  # noqa: PLC0415 - an extra
            import pyarrow.parquet  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise Unavailable(
                "Parquet files need pyarrow; install it (pip install 'isosim[ray]'), or save the vectors as .npy"
            ) from error
        self.arrow, self.path, self.name, self.column, self.text_column = pyarrow, path, str(path), column, text_column
        try:
            with pyarrow.parquet.ParquetFile(path) as file:
                schema, self._rows = file.schema_arrow, int(file.metadata.num_rows)
        except pyarrow.ArrowInvalid as error:
            raise InvalidInput(f"{path}: no Parquet file: {str(error)[:200]}") from None
        for name in (column, text_column):
            if name is not None and name not in schema.names:
                raise InvalidInput(f"{path} has no column {name!r}; it has {', '.join(schema.names)[:500]}")
        if not self._rows:
            raise EmptyInput(f"{path} holds no vectors")
        types, kind = pyarrow.types, schema.field(column).type
        lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        if not lists or not types.is_floating(kind.value_type):
            raise InvalidInput(f"{path}: column {column!r} holds {kind}; expected lists of {KINDS}")
        self.dim = len(next(self._cells(column, 1)).as_py() or ())

    def __len__(self) -> int:
        return self._rows

    def _cells(self, column: str, batch: int) -> Iterator[Any]:
        """The rows of a column as pyarrow scalars."""
        with self.arrow.parquet.ParquetFile(self.path) as file:
            for one in file.iter_batches(batch, columns=[column], use_threads=False):
                yield from one.column(0)

    def blocks(self) -> Iterator[Vectors]:
        rows, start = rows_of_a_block(self.dim), 0
        with self.arrow.parquet.ParquetFile(self.path) as file:
            for batch in file.iter_batches(rows, columns=[self.column], use_threads=False):
                yield self._block(batch.column(0), start)
                start += len(batch)

    def _block(self, cells: Any, start: int) -> Vectors:
        """A block (n, D) from n lists. Raises InvalidInput, which names the row or the range of rows."""
        if cells.null_count:
            row = start + next(number for number, cell in enumerate(cells) if not cell.is_valid)
            raise InvalidInput(f"{self.path}, row {row} (from 0): no vector")
        values = cells.flatten()
        lengths = self.arrow.compute.list_value_length(cells).to_numpy(zero_copy_only=False)
        if values.null_count or (lengths != self.dim).any():
            for number, cell in enumerate(cells):
                if len(cell) != self.dim:
                    raise InvalidInput(
                        f"{self.path}, row {start + number} (from 0): {len(cell)} numbers, the first row has {self.dim}"
                    )
            raise InvalidInput(
                f"{self.path}, rows {start} to {start + len(cells) - 1}: a vector contains null instead of a number"
            )
        with np.errstate(over="ignore"):
            block: Vectors = values.to_numpy(zero_copy_only=False).astype(np.float32).reshape(-1, self.dim)
        return block

    def texts(self) -> Iterator[str] | None:
        if self.text_column is None:
            return None
        return (str(cell.as_py() or "") for cell in self._cells(self.text_column, 4096))


def holds_vectors(path: Path, column: str) -> bool:
    """Whether a column of a Parquet file exists and contains lists, not text. False if pyarrow is not installed."""
    try:
        import pyarrow.parquet  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        return False
    try:
        schema = pyarrow.parquet.read_schema(path)
    except pyarrow.ArrowInvalid:
        return False
    lists = (pyarrow.types.is_list, pyarrow.types.is_large_list, pyarrow.types.is_fixed_size_list)
    return column in schema.names and any(is_list(schema.field(column).type) for is_list in lists)


def hash_of(vector: Vectors, seed: int = 0) -> int:
    """A hash of the vector, uniform in [0, 2⁶⁴); equal vectors have equal hashes."""
    digest = hashlib.blake2b(vector.tobytes(), digest_size=8, key=seed.to_bytes(8, "little", signed=True)).digest()
    return int.from_bytes(digest, "big")


@dataclass(frozen=True)
class DrawnRows:
    """The drawn rows of a file with their vectors, and the number of distinct vectors in the file.

    If all distinct vectors were drawn, the rows are in the order of the file. Otherwise they are sorted by hash.
    """

    rows: Rows
    vectors: Vectors
    distinct: int
    sha256: str  # SHA-256 of the drawn vectors' sorted hashes


def draw_rows(file: VectorFile, dim: int, seed: int, *, unit: bool, most: int = MOST_SENTENCES) -> DrawnRows:
    """Draws at most `most` distinct vectors: those with the smallest hashes. Reads the file twice: first for the
    hashes, then for the drawn vectors. Never holds the whole file in memory.

    Raises:
        InvalidInput: for the reasons given at `checked_blocks`.
    """
    hashes = np.empty(len(file), np.uint64)
    start = 0
    for block in checked_blocks(file, dim, unit=unit):
        hashes[start : start + len(block)] = [hash_of(row, seed) for row in block]
        start += len(block)
    ranks, first = np.unique(hashes, return_index=True)
    rows = np.sort(first) if len(ranks) <= most else first[:most]
    vectors = rows_at(file, rows)
    # The SHA-256 must not depend on `seed`, so the vectors are hashed again without it.
    used = np.sort(np.array([hash_of(vector) for vector in vectors], np.uint64))
    return DrawnRows(rows, vectors, len(ranks), hashlib.sha256(used.tobytes()).hexdigest())


def rows_of_a_block(dim: int) -> int:
    return max(1, BLOCK // (4 * dim))


def checked_blocks(file: VectorFile, dim: int, *, unit: bool) -> Iterator[Vectors]:
    """Yields the blocks of a file. Checks each vector of a block before it yields the block.

    Raises:
        InvalidInput: a vector does not have `dim` numbers, contains NaN or infinity, or has the norm 0 or an extreme
            norm. With `unit`, also if a norm is not 1.
    """
    if file.dim != dim:
        raise InvalidInput(f"{file.name}: vectors of {file.dim:,} numbers; the encoder's have {dim:,}")
    start = 0
    for block in file.blocks():
        for row, why in faults(block, unit=unit).items():
            raise InvalidInput(f"{file.name}, row {start + row} (from 0): {why}")
        yield block
        start += len(block)


def rows_at(file: VectorFile, rows: Sequence[int] | npt.NDArray[np.integer]) -> Vectors:
    """The vectors (M, D) of the given rows, in the given order.

    Raises:
        InvalidInput: the file has no such row.
    """
    wanted = np.asarray(rows, np.int64)
    if len(wanted) and not 0 <= wanted.min() <= wanted.max() < len(file):
        beyond = wanted[(wanted < 0) | (wanted >= len(file))][0]
        raise InvalidInput(f"row {beyond}: {file.name} has the rows 0 to {len(file) - 1}")
    order = np.argsort(wanted, kind="stable")
    found: Vectors = np.empty((len(wanted), file.dim), np.float32)
    start = done = 0
    for block in file.blocks() if len(wanted) else ():
        end = int(np.searchsorted(wanted, start + len(block), sorter=order))
        here = order[done:end]
        found[here] = block[wanted[here] - start]
        start, done = start + len(block), end
        if done == len(wanted):
            break
    return found
