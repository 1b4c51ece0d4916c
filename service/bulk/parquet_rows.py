"""Rows of Parquet files: a part is a range of rows; row groups are read one at a time."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from service.bulk.inputs import Open, Part, Records
from service.bulk.places import Place, reaching
from service.core.errors import InvalidInput


def is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


class ParquetReader:
    """Keeps the row group it read last: parts come in order, and a group may hold many of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at: tuple[Any, ...] = ()
        self._group: pa.Table | None = None

    def schema(self, open_file: Open) -> dict[str, str | None]:
        with open_file() as file:
            found = self._metadata(file).schema.to_arrow_schema()
        return {one.name: "text" if is_text(one.type) else str(one.type) for one in found}

    def cut(self, open_file: Open, rows: int) -> Iterator[tuple[int, int, int]]:
        with open_file() as file:
            every = self._metadata(file).num_rows
        for start in range(0, every, rows):
            stop = min(start + rows, every)
            yield stop - start, start, stop

    def _metadata(self, file: Any) -> Any:
        try:
            return pq.read_metadata(file)
        except pa.ArrowInvalid as error:
            raise InvalidInput(f"{getattr(file, 'name', None) or getattr(file, 'path', 'input')}: {error}") from error

    def read(self, place: Place, path: str, part: Part, columns: Sequence[str], keep: Sequence[str]) -> Records:
        wanted = list(dict.fromkeys((*columns, *keep)))
        pieces = []
        with self._lock, reaching(path), place.fs.open(path, "rb") as raw, pq.ParquetFile(raw) as file:
            before = 0
            for group in range(file.num_row_groups):
                after = before + file.metadata.row_group(group).num_rows
                if before < part.stop and after > part.start:
                    low, high = max(part.start, before), min(part.stop, after)
                    pieces.append(self._read(file, path, group, wanted).slice(low - before, high - low))
                before = after
        table = pa.concat_tables(pieces).combine_chunks()
        cells = {name: table[name].to_pylist() for name in columns}
        return Records(cells, table.select(list(keep)))

    def _read(self, file: Any, path: str, group: int, wanted: list[str]) -> pa.Table:
        at = (path, group, *wanted)
        if self._group is None or self._at != at:
            self._group, self._at = file.read_row_group(group, columns=wanted, use_threads=False), at
        return self._group
