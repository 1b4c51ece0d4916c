"""Reads `.npy` files of vectors that were computed elsewhere, block by block."""

import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from isosim.arrays import Rows, Vectors
from isosim.encoders.brought import faults
from isosim.errors import EmptyInput, InvalidInput
from isosim.jobs.requirements import MOST_SENTENCES

BLOCK = 8 * 2**20  # bytes of float32 read at once
LONGEST_HEADER = 4096  # maximum bytes of a .npy header; NumPy itself writes 118
KINDS = "float16, float32 or float64"


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
        """Yields all rows in order, in blocks (n, D). Each block is a copy."""
        rows = rows_of_a_block(self.dim)
        for start in range(0, len(self), rows):
            with np.errstate(over="ignore"):  # values beyond float32 become infinite and are refused later
                # Mapped anew for each block: pages of a mapping that was read count as used memory until it is closed.
                yield np.array(self._array()[start : start + rows], np.float32, order="C")


def header_of(rows: int, dim: int) -> bytes:
    """The header of a `.npy` with so many vectors; its length is the same for every number of rows."""
    written = io.BytesIO()
    np.lib.format.write_array_header_1_0(written, {"descr": "<f4", "fortran_order": False, "shape": (rows, dim)})
    return written.getvalue()


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


def draw_rows(file: NpyFile, seed: int, most: int = MOST_SENTENCES) -> DrawnRows:
    """Draws at most `most` distinct vectors: those with the smallest hashes. Reads the file twice: first for the
    hashes, then for the drawn vectors. Never holds the whole file in memory. The vectors were checked when they were
    posted.
    """
    hashes = np.empty(len(file), np.uint64)
    start = 0
    for block in file.blocks():
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


def checked_blocks(file: NpyFile, dim: int, *, unit: bool) -> Iterator[Vectors]:
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


def rows_at(file: NpyFile, rows: Sequence[int] | npt.NDArray[np.integer]) -> Vectors:
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
