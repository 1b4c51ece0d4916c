"""Serializes a part's table as one file; the same table always gives the same bytes."""

import csv
import io
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from isosim.arrays import Vectors

FORMS = ("parquet", "csv", "jsonl")
VECTOR, UNREADABLE = "vector", "unreadable"


def vector_column(vectors: Vectors, rows: "np.ndarray[Any, np.dtype[np.intp]]", count: int) -> pa.Array:
    """A column of `count` entries. Entry rows[n] is vector n of `vectors` (N, D); the other entries are null."""
    dim = vectors.shape[1]
    every = np.zeros((count, dim), np.float32)
    every[rows] = vectors
    missing = np.ones(count, bool)
    missing[rows] = False
    return pa.FixedSizeListArray.from_arrays(pa.array(every.reshape(-1)), dim, mask=pa.array(missing))


def to_bytes(table: pa.Table, form: str, provenance: dict[str, str]) -> bytes:
    """The bytes of a file with the table. `provenance` is written into Parquet only."""
    if form == "parquet":
        return as_parquet(table, provenance)
    columns = {name: cells(table[name]) for name in table.column_names}
    if form == "jsonl":
        names = list(columns)
        rows = (dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True))
        return b"".join(orjson.dumps(row, option=NUMPY, default=str) + b"\n" for row in rows)
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([in_a_cell(value) for value in row] for row in zip(*columns.values(), strict=True))
    return text.getvalue().encode()


NUMPY = orjson.OPT_SERIALIZE_NUMPY


def cells(column: pa.ChunkedArray) -> list[Any]:
    """A column as a list of Python values. Only float32 values stay NumPy values: orjson writes np.float32(0.1) as 0.1,
    but float(np.float32(0.1)) as 0.10000000149011612."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    if pa.types.is_fixed_size_list(array.type) and pa.types.is_float32(array.type.value_type):
        # `array.values` also has numbers in place of null rows; the next statement replaces these rows with None.
        matrix = np.asarray(array.values).reshape(len(array), array.type.list_size)
        return [row if there else None for row, there in zip(matrix, array.is_valid().to_pylist(), strict=True)]
    if pa.types.is_float32(array.type):
        values = array.to_numpy(zero_copy_only=False).astype(np.float32)
        return [value if there else None for value, there in zip(values, array.is_valid().to_pylist(), strict=True)]
    objects: list[Any] = array.to_pylist()
    return objects


def in_a_cell(value: Any) -> Any:
    """A value for a CSV cell: lists become JSON, and numbers take their shortest form."""
    if value is None or isinstance(value, str):
        return value
    return orjson.dumps(value, option=NUMPY, default=str).decode()


def as_parquet(table: pa.Table, provenance: dict[str, str]) -> bytes:
    """Parquet bytes without the time of writing: the same table always gives the same bytes."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        table.replace_schema_metadata(provenance),
        sink,
        version="2.6",
        compression="zstd",
        use_dictionary=False,
        write_statistics=False,
        store_schema=True,
    )
    return bytes(sink.getvalue())
