"""The same sentences in every kind of file that people have, for the ways a file is read."""

import csv
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq

from tests.text import sentences
from tests.workbooks import workbook

TEXTS = [f"{text} – äußerst schön, wirklich" for text in sentences(400)]
ROWS = [["id", "question", "state"], *([f"T-{n}", text, "open"] for n, text in enumerate(TEXTS))]


def table(separator: str) -> str:
    written = io.StringIO(newline="")
    csv.writer(written, delimiter=separator).writerows(ROWS)
    return written.getvalue()


def parquet() -> bytes:
    written = io.BytesIO()
    pq.write_table(pa.table({name: [row[place] for row in ROWS[1:]] for place, name in enumerate(ROWS[0])}), written)
    return written.getvalue()


# A file's name, its content, what it is recognized as, and the query that reads it.
FILES: dict[str, tuple[bytes, str, dict[str, str]]] = {
    "plain.txt": ("\n".join(TEXTS).encode(), "text", {}),
    "utf-16.txt": ("\r\n".join(TEXTS).encode("utf-16"), "text", {}),
    "windows-1252.txt": ("\r\n".join(TEXTS).encode("cp1252"), "text", {}),
    "comma.csv": (table(",").encode("utf-8-sig"), "csv", {"column": "question"}),
    "semicolon.csv": (table(";").encode("cp1252"), "csv", {"column": "question"}),
    "tabs.tsv": (table("\t").encode(), "tsv", {"column": "2"}),
    "lines.ndjson": (
        "\n".join(json.dumps(dict(zip(ROWS[0], row, strict=True))) for row in ROWS[1:]).encode(), "ndjson",
        {"column": "question"},
    ),
    "book.xlsx": (
        workbook([["nothing here"]], ROWS, names=["Cover", "Tickets"]), "xlsx",
        {"column": "question", "sheet": "Tickets"},
    ),
    "table.parquet": (parquet(), "parquet", {"column": "question"}),
}  # fmt: skip
