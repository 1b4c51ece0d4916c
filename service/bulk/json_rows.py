"""Rows of JSON lines: a part is a range of bytes that ends with a line; blank lines are no rows."""

from collections.abc import Iterator, Sequence
from typing import Any

import orjson
import pyarrow as pa

from service.bulk.csv_rows import no_columns
from service.bulk.inputs import Open, Part, Records
from service.bulk.places import Place


class JsonReader:
    def schema(self, open_file: Open) -> dict[str, str | None]:
        """Nothing: each line has what it has."""
        return {}

    def cut(self, open_file: Open, rows: int) -> Iterator[tuple[int, int, int]]:
        with open_file() as file:
            start = at = count = 0
            for line in file:
                at += len(line)
                count += not line.isspace()
                if count == rows:
                    yield count, start, at
                    start, count = at, 0
            if count:
                yield count, start, at

    def read(self, place: Place, path: str, part: Part, columns: Sequence[str], keep: Sequence[str]) -> Records:
        content: bytes = place.fs.cat_file(path, start=part.start, end=part.stop)
        rows: list[dict[str, Any]] = []
        broken: dict[int, str] = {}
        for line in content.split(b"\n"):
            if not line or line.isspace():
                continue
            try:
                found = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                broken[len(rows)] = f"no JSON: {error}"
                found = {}
            if not isinstance(found, dict):
                broken[len(rows)] = "no JSON object"
                found = {}
            rows.append(found)
        kept = {name: pa.array([as_text(row.get(name)) for row in rows], pa.string()) for name in keep}
        table = pa.table(kept) if kept else no_columns(len(rows))
        return Records({name: [row.get(name) for row in rows] for name in columns}, table, broken)


def as_text(value: Any) -> str | None:
    """A string as it is, anything else as JSON: a kept column has one type, whatever its lines hold."""
    return value if value is None or isinstance(value, str) else orjson.dumps(value).decode()
