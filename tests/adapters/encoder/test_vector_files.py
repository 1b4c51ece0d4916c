"""Files of vectors that people bring: every kind that numpy writes, and those that are not what they say."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isosim.errors import EmptyInput, InvalidInput
from isosim.jobs import vector_files
from isosim.jobs.requirements import draw
from isosim.jobs.vector_files import (
    NpyFile,
    checked_blocks,
    draw_rows,
    rows_at,
)

DIM = 12
RNG = np.random.default_rng(5)
VECTORS = RNG.normal(size=(500, DIM)).astype(np.float32)


@pytest.fixture(autouse=True)
def many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a few hundred rows have several blocks."""
    monkeypatch.setattr(vector_files, "BLOCK", 64 * 4 * DIM)


def saved(folder: Path, array: Any, **options: Any) -> Path:
    np.save(folder / "vectors.npy", array, **options)
    return folder / "vectors.npy"


def whole(file: NpyFile) -> Any:
    return np.concatenate(list(checked_blocks(file, DIM, unit=False)))


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", ">f2", ">f4", ">f8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_every_float_and_order_gives_the_same_rows(tmp_path: Path, dtype: str, order: Any) -> None:
    array = np.asarray(VECTORS, dtype, order)
    file = NpyFile(saved(tmp_path, array))
    assert (len(file), file.dim) == VECTORS.shape
    assert np.array_equal(whole(file), array.astype(np.float32))
    rows = RNG.integers(0, len(VECTORS), 300)  # some twice, in any order
    assert np.array_equal(rows_at(file, rows), array[rows].astype(np.float32))


class Harmful:
    """Pickled; whoever unpickles it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_pickled_objects_are_refused_and_never_read(tmp_path: Path) -> None:
    harmed = tmp_path / "harmed"
    path = saved(tmp_path, np.array([[Harmful(harmed)]], dtype=object), allow_pickle=True)
    with pytest.raises(InvalidInput, match="Python objects"):
        NpyFile(path)
    path.write_bytes(pickle.dumps(Harmful(harmed)))
    with pytest.raises(InvalidInput, match=r"not a complete \.npy file"):
        NpyFile(path)
    assert not harmed.exists()


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((3, DIM), np.int32), "vectors must be float16, float32 or float64"),
        (np.zeros((3, DIM), np.complex64), "vectors must be"),
        (np.zeros((3, DIM), np.longdouble), "vectors must be"),
        (np.zeros((3, DIM), "U4"), "vectors must be"),
        (np.zeros(3, [("a", "f4"), ("b", "f4")]), "vectors must be"),
        (np.zeros(DIM, np.float32), r"shape \(12,\); expected \(vectors, dimensions\)"),
        (np.zeros((2, 3, DIM), np.float32), "expected"),
        (np.float32(1), "expected"),
    ],
)
def test_other_arrays_are_refused(tmp_path: Path, array: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        NpyFile(saved(tmp_path, array))


@pytest.mark.parametrize("shape", [(0, DIM), (3, 0)])
def test_a_file_without_vectors_is_empty(tmp_path: Path, shape: tuple[int, int]) -> None:
    with pytest.raises(EmptyInput):
        NpyFile(saved(tmp_path, np.zeros(shape, np.float32)))


def header(shape: str, descr: str = "'<f4'", order: str = "False") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    text += b" " * (118 - len(text) - 1) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def python(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + VECTORS.tobytes()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header(f"(1000, {DIM})") + VECTORS.tobytes(), "greater than file size"),
        (header(f"(3, {DIM})") + VECTORS.tobytes(), "23,856 bytes follow the array"),
        (header(f"({10**15}, {10**9})") + VECTORS.tobytes(), "not a complete"),
        (header(f"(-500, {DIM})") + VECTORS.tobytes(), "not a complete"),
        (header("('a', 'b')") + VECTORS.tobytes(), "not a complete"),
        (header("(1, 2)", descr="__import__('os')") + VECTORS.tobytes(), "not a complete"),
        (header(f"(500, {DIM})")[:60], "not a complete"),
        (python("{[]: 1}"), "not a complete"),
        (python("1+" * 1900 + "1"), "not a complete"),
        (python("-" * 60_000 + "1"), "not a complete"),
        (b"\x93NUMPY\x09\x00" + header(f"(500, {DIM})")[8:] + VECTORS.tobytes(), "not a complete"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\x7f" + b" " * 1000, "not a complete"),
        (b"PK\x03\x04", "not a complete"),
        (b"", "not a complete"),
    ],
)
def test_a_file_that_lies_about_its_shape_is_refused_before_it_is_read(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "lies.npy"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=message):
        NpyFile(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.__setitem__((317, 3), np.nan), r"row 317 \(from 0\): holds NaN or infinity"),
        (lambda v: v.__setitem__((499, 0), np.inf), "row 499 .*holds NaN or infinity"),
        (lambda v: v.__setitem__((0, 0), 1e300), "row 0 .*holds NaN or infinity"),  # beyond float32
        (lambda v: v.__setitem__(64, 0), "row 64 .*vector of zeros"),
        (lambda v: v.__setitem__(64, v[64] * 1e13), r"row 64 .*has the norm \d.*e\+13; 1e-12 to 1e\+12 are accepted"),
        (lambda v: v.__setitem__(64, v[64] * 1e-14), "row 64 .*has the norm .*scale the vectors"),
    ],
)
def test_a_row_that_is_no_vector_is_named(tmp_path: Path, change: Callable[[Any], None], message: str) -> None:
    vectors = VECTORS.astype(np.float64)
    change(vectors)
    with pytest.raises(InvalidInput, match=message):
        whole(NpyFile(saved(tmp_path, vectors)))


def test_another_dimension_and_another_length_are_named(tmp_path: Path) -> None:
    file = NpyFile(saved(tmp_path, VECTORS))
    with pytest.raises(InvalidInput, match="vectors of 12 numbers; the encoder's have 13"):
        list(checked_blocks(file, DIM + 1, unit=False))
    with pytest.raises(InvalidInput, match=r"row 0 .* has the norm \d.*registered with unit vectors"):
        list(checked_blocks(file, DIM, unit=True))
    unit = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)
    list(checked_blocks(NpyFile(saved(tmp_path, unit.astype(np.float16))), DIM, unit=True))
    with pytest.raises(InvalidInput, match=r"has the norm 1\.001\d"):  # and not "the norm 1"
        list(checked_blocks(NpyFile(saved(tmp_path, 1.0011 * unit)), DIM, unit=True))


def test_unit_vectors_rounded_to_bfloat16_are_accepted(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).standard_normal((3000, 384), np.float32)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    rounded = ((unit.view(np.uint32) + 0x8000) & 0xFFFF0000).view(np.float32)  # keeps the upper 16 bits
    assert 5e-4 < np.abs(np.linalg.norm(rounded.astype(np.float64), axis=1) - 1).max() < 1e-3
    list(checked_blocks(NpyFile(saved(tmp_path, rounded)), 384, unit=True))


def test_all_distinct_vectors_are_drawn_in_order_and_of_more_the_same_sample_in_any_order(tmp_path: Path) -> None:
    twice = np.concatenate([VECTORS, VECTORS[:50]])
    drawn = draw_rows(NpyFile(saved(tmp_path, twice)), 3)
    assert drawn.distinct == 500
    assert drawn.rows.tolist() == list(range(500))
    assert np.array_equal(drawn.vectors, VECTORS)
    some = draw_rows(NpyFile(saved(tmp_path, twice)), 3, most=100)
    order = RNG.permutation(len(twice))
    again = draw_rows(NpyFile(saved(tmp_path, twice[order])), 3, most=100)
    assert np.array_equal(some.vectors, again.vectors)
    assert some.sha256 == again.sha256
    assert drawn.sha256 == draw_rows(NpyFile(saved(tmp_path, twice)), 4).sha256  # of the vectors alone
    other = draw_rows(NpyFile(saved(tmp_path, twice)), 4, most=100)
    assert not np.array_equal(some.vectors, other.vectors)
    assert len(draw(map(str, range(500)), 3, most=100)[0]) == 100  # as texts are drawn


def test_a_row_that_is_not_there_is_named(tmp_path: Path) -> None:
    file = NpyFile(saved(tmp_path, VECTORS))
    assert rows_at(file, []).shape == (0, DIM)
    with pytest.raises(InvalidInput, match=r"row 500: .* has the rows 0 to 499"):
        rows_at(file, [3, 500])


READ = """
import resource, sys
from pathlib import Path
from isosim.jobs.vector_files import NpyFile, draw_rows
file = NpyFile(Path(sys.argv[1]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
draw_rows(file, 0, most=1000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_large_file_is_read_in_little_memory(tmp_path: Path, order: Any) -> None:
    """300 MB are mapped, and a tenth of it counts at any time."""
    rows, dim = 100_000, 768
    path = tmp_path / "large.npy"
    array = np.lib.format.open_memmap(path, "w+", np.float32, (rows, dim), fortran_order=order == "F")
    for start in range(0, dim, 64):
        array[:, start : start + 64] = RNG.random((rows, 64), np.float32)
    array.flush()
    del array
    done = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 120_000  # kB
