"""Serializes a block's table as one file; the same table always gives the same bytes."""

import orjson
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet


def to_bytes(table: pa.Table, form: str, provenance: dict[str, str]) -> bytes:
    """The bytes of a Parquet or CSV file. `provenance` is written into Parquet only; lists become JSON in CSV."""
    sink = pa.BufferOutputStream()
    if form == "parquet":
        # Vectors and scores hardly repeat: a dictionary or statistics of them would only take time.
        pyarrow.parquet.write_table(
            table.replace_schema_metadata(provenance), sink, compression="zstd", use_dictionary=False,
            write_statistics=False,
        )  # fmt: skip
    else:
        pyarrow.csv.write_csv(pa.table({name: in_cells(table[name]) for name in table.column_names}), sink)
    return bytes(sink.getvalue())


def in_cells(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_nested(column.type):
        return column
    cells = (None if value is None else orjson.dumps(value, default=str).decode() for value in column.to_pylist())
    return pa.chunked_array([pa.array(cells, pa.string())])
