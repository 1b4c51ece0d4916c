"""Files of vectors that were computed elsewhere: `.npy`, and a column of a Parquet file. Read block by block."""

import hashlib
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt

from service.adapters.encoder.brought import faults
from service.core.arrays import Rows, Vectors
from service.core.errors import EmptyInput, InvalidInput, Unavailable
from service.core.jobs.requirements import MOST_SENTENCES

BLOCK = 8 * 2**20  # bytes of float32 that are looked at together
MAGIC = np.lib.format.MAGIC_PREFIX
LONGEST_HEADER = 4096  # bytes of a .npy; one that numpy writes has 118
KINDS = "float16, float32 or float64"


class VectorFile(Protocol):
    """Vectors of one dimension, in order."""

    name: str
    dim: int

    def __len__(self) -> int: ...

    def blocks(self) -> Iterator[Vectors]:
        """All rows, in order, some at once (n, D); each block is a copy.

        Raises:
            InvalidInput: a row is no vector; the message says which one.
        """

    def texts(self) -> Iterator[str] | None:
        """What the vectors are of, row by row; None: the file does not say."""


class NpyFile:
    """A numpy array (N, D) in a file, mapped into memory. Pickled objects are never read."""

    def __init__(self, path: Path, name: str | None = None) -> None:
        """Raises InvalidInput where the file is no such array, or has not the size that its header says."""
        self.path, self.name = path, name or str(path)
        with path.open("rb") as file:
            try:
                self.shape, self.fortran, self.dtype = read_header(file)
            except InvalidInput as error:
                raise InvalidInput(f"{self.name}: {error}") from None
            self.offset = file.tell()
            there = file.seek(0, 2) - self.offset
        needed = self.shape[0] * self.shape[1] * self.dtype.itemsize
        if there != needed:
            raise InvalidInput(
                f"{self.name}: its header says {self.shape[0]:,} × {self.shape[1]:,} numbers, {needed:,} bytes, and "
                f"{there:,} follow; was it cut off?"
            )
        self.dim = self.shape[1]

    def __len__(self) -> int:
        return self.shape[0]

    def blocks(self) -> Iterator[Vectors]:
        rows = rows_of_a_block(self.dim)
        with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
            flat = np.frombuffer(mapping, self.dtype, offset=self.offset)
            every = flat.reshape(self.shape, order="F" if self.fortran else "C")
            try:
                for start in range(0, len(self), rows):
                    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused
                        block = every[start : start + rows].astype(np.float32, order="C")
                    yield block
                    del block
                    mapping.madvise(mmap.MADV_DONTNEED)  # else what was read would count as this process's memory
            finally:
                del flat, every  # the mapping cannot be closed while something points into it

    def texts(self) -> None:
        return None


def read_header(file: BinaryIO) -> tuple[tuple[int, int], bool, np.dtype[Any]]:
    """Shape, whether columns lie one after the other (Fortran), and type of a `.npy`; no object is unpickled.

    Raises:
        InvalidInput: it is no `.npy`, or holds something else than rows of floating-point numbers.
    """
    if file.read(len(MAGIC)) != MAGIC:
        raise InvalidInput("no .npy file: it does not begin as numpy.save writes it")
    file.seek(0)
    try:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran, dtype = read(file, max_header_size=LONGEST_HEADER)
    except Exception as error:  # noqa: BLE001 - numpy parses it as Python: whatever comes of it is the file's fault
        why = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise InvalidInput(f"its .npy header cannot be read: {why}") from None
    if dtype.hasobject or dtype.kind != "f" or dtype.itemsize > 8:
        raise InvalidInput(f"holds {dtype.name}; vectors are of {KINDS} (array.astype('float32'))")
    if len(shape) != 2 or min(shape) < 0:
        raise InvalidInput(f"has the shape {tuple(shape)}; expected (vectors, dimensions)")
    if not min(shape):
        raise EmptyInput("holds no vectors")
    return (int(shape[0]), int(shape[1])), fortran, dtype


class ParquetColumn:
    """A column of lists of numbers, and one with the texts, if there is one; read with pyarrow (isosim[ray])."""

    def __init__(self, path: Path, column: str, text_column: str | None = None) -> None:
        """Raises InvalidInput where the file has no such columns; Unavailable without pyarrow."""
        try:
            import pyarrow.compute  # noqa: PLC0415 - an extra
            import pyarrow.parquet  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise Unavailable(
                "Parquet files need pyarrow: pip install 'isosim[ray]'; or save the vectors as .npy"
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
        """The rows of a column as Python or numpy objects."""
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
        """(n, D) out of n lists. Raises InvalidInput, naming the row."""
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
            raise InvalidInput(f"{self.path}, rows {start} to {start + len(cells) - 1}: a vector has an empty place")
        with np.errstate(over="ignore"):
            block: Vectors = values.to_numpy(zero_copy_only=False).astype(np.float32).reshape(-1, self.dim)
        return block

    def texts(self) -> Iterator[str] | None:
        if self.text_column is None:
            return None
        return (str(cell.as_py() or "") for cell in self._cells(self.text_column, 4096))


def holds_vectors(path: Path, column: str) -> bool:
    """Whether a column of a Parquet file holds lists, and not text; false where it is not there."""
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
    """A vector's place, uniform in [0, 2⁶⁴); equal ones have one place."""
    digest = hashlib.blake2b(vector.tobytes(), digest_size=8, key=seed.to_bytes(8, "little", signed=True)).digest()
    return int.from_bytes(digest, "big")


@dataclass(frozen=True)
class DrawnRows:
    """Rows to use, in the file's order where it is used whole, and how many distinct vectors there are."""

    rows: Rows
    vectors: Vectors
    distinct: int
    sha256: str  # of these vectors' hashes, whatever their order


def draw_rows(file: VectorFile, dim: int, seed: int, *, unit: bool, most: int = MOST_SENTENCES) -> DrawnRows:
    """All distinct vectors; beyond `most` that many, in the order of their hashes, as `core.jobs.requirements.draw` has
    it for texts. The file is read twice; of what is not used only hashes are held.

    Raises:
        InvalidInput: as `checked_blocks`.
    """
    hashes = np.empty(len(file), np.uint64)
    start = 0
    for block in checked_blocks(file, dim, unit=unit):
        hashes[start : start + len(block)] = [hash_of(row, seed) for row in block]
        start += len(block)
    ranks, first = np.unique(hashes, return_index=True)
    rows = np.sort(first) if len(ranks) <= most else first[:most]
    vectors = rows_at(file, rows)
    used = np.sort(np.array([hash_of(vector) for vector in vectors], np.uint64))  # whatever the seed
    return DrawnRows(rows, vectors, len(ranks), hashlib.sha256(used.tobytes()).hexdigest())


def rows_of_a_block(dim: int) -> int:
    return max(1, BLOCK // (4 * dim))


def checked_blocks(file: VectorFile, dim: int, *, unit: bool) -> Iterator[Vectors]:
    """The blocks of a file whose vectors an encoder's domains can be calibrated on.

    Raises:
        InvalidInput: another dimension, NaN or infinity, zeros, or a length that is not 1 where all should have it.
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
    """Some of a file's vectors (M, D), in the order asked for.

    Raises:
        InvalidInput: there is no such row.
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
