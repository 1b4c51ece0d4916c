"""Rows of Parquet, CSV and JSON lines in blocks of equal size, read by pyarrow.dataset."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset as ds
import pyarrow.json

from isosim.errors import EmptyInput, InvalidInput, Unavailable
from isosim.store.blobs import client_options, remote

ENDINGS = {
    ".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl",
}  # fmt: skip
COMPRESSED = (".gz", ".bz2", ".zst")  # endings of CSV and JSON lines that pyarrow decompresses
PARSED = 4 << 20  # bytes of CSV or JSON lines that are parsed together; a longer row is refused

TEXT, VECTOR = pa.string(), pa.list_(pa.float32())


@dataclass(frozen=True)
class InputFile:
    path: str
    size: int  # bytes
    stamp: str  # ETag (object storage) or modification time; shows whether the content has changed


@dataclass(frozen=True)
class Input:
    """Files that are read as one table."""

    address: str
    files: tuple[InputFile, ...]
    dataset: ds.Dataset

    def batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        """All rows in order, in batches of at most `rows` rows. Raises InvalidInput if a row cannot be parsed."""
        with reading(self.address):
            yield from self.dataset.scanner(
                batch_size=rows, use_threads=False, batch_readahead=2, fragment_readahead=1
            ).to_batches()

    def blocks(self, rows: int) -> Iterator[pa.Table]:
        """All rows in order, in tables of exactly `rows` rows; the last one may have fewer."""
        held: list[pa.RecordBatch] = []
        count = 0
        for batch in self.batches(rows):
            rest = batch
            while rest.num_rows:
                taken = rest.slice(0, rows - count)
                rest = rest.slice(taken.num_rows)
                held.append(taken)
                count += taken.num_rows
                if count == rows:
                    yield pa.Table.from_batches(held)
                    held, count = [], 0
        if held:
            yield pa.Table.from_batches(held)

    def table(self) -> pa.Table:
        with reading(self.address):
            return self.dataset.to_table()

    def count(self) -> int:
        """The number of rows."""
        with reading(self.address):
            return int(self.dataset.count_rows())


@contextmanager
def reading(address: str) -> Iterator[None]:
    """Converts the errors of readers and storage clients.

    Raises:
        InvalidInput: a file cannot be parsed.
        Unavailable: the storage client is not installed, or cannot reach the storage.
    """
    try:
        yield
    except ImportError as error:
        raise Unavailable(f"{address}: {error}; a bucket needs an extra: pip install 'isosim[bucket]'") from error
    except pa.ArrowException as error:
        raise InvalidInput(f"{address}: {error}") from error
    except Exception as error:  # obstore's errors have no base that is importable without it
        if type(error).__module__.partition(".")[0] != "obstore":
            raise
        raise Unavailable(f"{address}: {' '.join(str(error).split('Debug source')[0].split())}") from error


def open_input(address: str, types: Mapping[str, pa.DataType | None]) -> Input:
    """Opens a file, a folder or a pattern.

    Args:
        types: name -> type of each column to read. None is the type in the files; columns of CSV are then text.

    Raises:
        EmptyInput: there is no file with content.
        InvalidInput: the formats differ, a file cannot be parsed, or lacks a column, or a column has another type.
    """
    with reading(address):
        storage, files = files_of(address)
        forms = {ending(file.path) for file in files}
        form = ENDINGS[min(forms)]
        if len({ENDINGS[one] for one in forms}) > 1:
            raise InvalidInput(f"{address} mixes formats: {', '.join(sorted(forms))}; give a pattern for one of them")
        layout = layout_of(form, "\t" if ".tsv" in forms else ",")
        paths = [file.path for file in files]
        schemas = {}
        for fragment in ds.dataset(paths, format=layout, filesystem=storage).get_fragments():
            schema = schemas[fragment.path] = fragment.physical_schema
            if missing := [name for name in types if name not in schema.names]:
                raise InvalidInput(f"{fragment.path} has no column {missing[0]!r}; it has {', '.join(schema.names)}")
        fields = [(name, kind or type_of(name, schemas.values(), form)) for name, kind in types.items()]
        dataset = ds.dataset(paths, pa.schema(fields), layout, storage)
        dataset.head(1, use_threads=False)  # raises an error if a column cannot be read as this type
        return Input(address, files, dataset)


def files_of(address: str) -> tuple[Any, tuple[InputFile, ...]]:
    """The file system of an input, and its files that are not empty, sorted by name.

    Skips files without a known ending. In a folder, also skips files and folders whose name begins with `.` or `_`.
    """
    options: dict[str, Any] = {}
    if remote(address) and not address.startswith("file:"):
        from obstore.fsspec import register  # noqa: PLC0415 - an extra

        register(address.partition(":")[0])
        options = client_options()
    storage, root = fsspec.core.url_to_fs(address, **options)
    pattern = any(sign in address for sign in "*?[")
    found = storage.glob(root, detail=True) if pattern else storage.find(root, detail=True)
    hidden = re.compile(r"/[._]")
    files = tuple(
        InputFile(path, int(one["size"]), str(one.get("e_tag") or one.get("mtime") or ""))
        for path, one in sorted(found.items())
        if one["type"] == "file" and one["size"] and ending(path) in ENDINGS
        if pattern or not hidden.search(path, len(root))
    )
    if not files:
        raise EmptyInput(f"{address}: no file with content whose name ends in {', '.join(ENDINGS)}")
    return storage, files


def ending(path: str) -> str:
    """The ending of a file's name, in lower case and without that of a compression."""
    name = path.lower()
    for packed in COMPRESSED:
        name = name.removesuffix(packed)
    return "." + name.rpartition(".")[2]


def layout_of(form: str, delimiter: str) -> ds.FileFormat:
    if form == "csv":
        return ds.CsvFileFormat(
            pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            ds.CsvFragmentScanOptions(read_options=pyarrow.csv.ReadOptions(block_size=PARSED)),
        )
    if form == "jsonl":
        return ds.JsonFileFormat(ds.JsonFragmentScanOptions(read_options=pyarrow.json.ReadOptions(block_size=PARSED)))
    return ds.ParquetFileFormat()


def type_of(name: str, schemas: Iterable[pa.Schema], form: str) -> pa.DataType:
    """The type of a column in all files; text where a guess of the reader could change values, like 007 to 7."""
    fields = [pa.schema([schema.field(name)]) for schema in schemas]
    kind = pa.unify_schemas(fields, promote_options="permissive").field(0).type
    guessed = form == "jsonl" and (pa.types.is_temporal(kind) or pa.types.is_null(kind))
    return TEXT if form == "csv" or guessed else kind
