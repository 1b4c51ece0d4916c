"""Reads an untrusted file in a child process with limits on memory, processor time and output, and without network.

Without limits, a workbook of 2 kB could end the server: if its only cell is in the last corner of the sheet, the parser
needs 50 GB of memory. The child process gets the file as standard input, and writes sentences or rows to standard
output (a file). The last line of standard error contains facts about the file, or why the file is refused.
"""

import ctypes
import errno
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal

from isosim import errors
from isosim.jobs.tables import FEW_ROWS, KINDS, MOST, Kind, Table, is_code, kind_of_name, open_table
from isosim.jobs.text_lines import STDIN, check_decoded

Give = Literal["facts", "sentences", "rows", "numbered_rows"]  # numbered_rows: [number, cells] for each row

# Maximum bytes of memory to read a file that is held in memory as a whole. A workbook of 1,000,000 rows and five
# columns needed 990 MB.
MEMORY = 3 << 29
MEMORY_OF_LINES = 3 << 27  # maximum bytes of memory to read a file line by line; 100 MB of CSV or NDJSON needed 200 MB
LEAST_MEMORY = 3 << 25  # lowest memory limit of the child process, in bytes; with 64 MiB, reading Parquet fails
SECONDS = 60  # maximum seconds of processor time; a workbook of 1,000,000 rows and five columns needed 9 s
PATIENCE = 100  # wall-clock seconds until the child is killed; less than the 120 s that a request may take
LOOK = 0.1  # seconds between checks whether the client has disconnected
SHOWN_ROWS, SHOWN_COLUMNS, SHOWN_CHARACTERS = 10, 100, 200  # maximum rows, columns and characters per cell in a preview
PLACES = 5  # maximum number of skipped rows, or of sheets, that a message names
NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000  # flags of unshare(2)


@dataclass(frozen=True)
class Limits:
    """Limits for reading a file."""

    characters: int  # maximum characters of a sentence
    sentences: int  # maximum number of sentences, or rows
    size: int  # maximum bytes of JSON that the child process may write
    memory: int = MEMORY  # maximum bytes of memory of the child process


@dataclass(frozen=True)
class Reading:
    """What to return from a file (`give`), which column to read, and what is declared of the file.

    The whole file is read even for facts alone, because the facts include the number of sentences.
    """

    give: Give = "facts"
    column: str | None = None
    kind: Kind | None = None
    charset: str | None = None
    sheet: str | None = None
    header: bool | None = None
    force: bool = False  # each line of a text is a sentence, even if the lines look like a table

    def __post_init__(self) -> None:
        if self.kind is not None and self.kind not in KINDS:
            raise errors.InvalidInput(f"format: {self.kind[:40]!r} is not known; known are {', '.join(KINDS)}")

    @property
    def plain(self) -> bool:
        """True if nothing is given of lines of JSON but their kind."""
        return self.kind in (None, "ndjson") and self == Reading(self.give, kind=self.kind, force=self.force)


def read_isolated(
    file: BinaryIO,
    reading: Reading,
    limits: Limits,
    out: BinaryIO | None = None,
    left: threading.Event | None = None,
) -> dict[str, Any]:
    """Reads a file and returns facts about it. Writes its sentences or rows to `out` as JSON, one in each line.

    Args:
        file, out: files with a file descriptor. `file` is read from its beginning.
        left: set by another thread when the client has disconnected; the child process is then killed.

    Raises:
        UnsupportedMedia, InvalidInput, EmptyInput, TooLarge: for the reasons given at `open_table`, or because a limit
            is reached.
        CallerLeft: `left` was set.
    """
    os.lseek(file.fileno(), 0, os.SEEK_SET)
    # The child gets nothing of this process's environment, which holds passwords. It imports modules from the same
    # folders; the option -P keeps it from importing modules from the working directory.
    environment = {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PYTHONUTF8": "1",
        "OMP_NUM_THREADS": "1",
        "ARROW_DEFAULT_MEMORY_POOL": "system",
    }
    with subprocess.Popen(  # noqa: S603 - our own interpreter and module
        [sys.executable, "-P", "-m", __name__, json.dumps([asdict(reading), asdict(limits)])],
        stdin=file,
        stdout=subprocess.DEVNULL if out is None else out,
        stderr=subprocess.PIPE,
        env=environment,
    ) as child:
        said = last_words(child, limits, left or threading.Event())
    if child.returncode < 0:
        raise errors.InvalidInput(too_much(limits.memory))  # the child was killed at a limit, or ran out of memory
    if child.returncode > 0:
        raise RuntimeError(f"the reader of files failed:\n{said.decode(errors='replace')[-2000:]}")
    kind, content = json.loads(said.splitlines()[-1])
    if kind == "facts":
        facts: dict[str, Any] = content
        return facts
    raise getattr(errors, kind)(content)


def last_words(
    child: subprocess.Popen[bytes], limits: Limits, left: threading.Event, patience: float = PATIENCE
) -> bytes:
    """Waits until the child process has ended and returns its standard error. Kills the child if it takes longer than
    `patience` (s) or if `left` is set.

    Raises:
        InvalidInput: the child took too long.
        CallerLeft: `left` was set.
    """
    latest = time.monotonic() + patience
    while True:
        try:
            return child.communicate(timeout=LOOK)[1]
        except subprocess.TimeoutExpired:
            if left.is_set() or time.monotonic() > latest:
                child.kill()
                raise (errors.CallerLeft() if left.is_set() else errors.InvalidInput(too_much(limits.memory))) from None


@contextmanager
def read_path(path: Path, reading: Reading, limits: Limits) -> Iterator[tuple[dict[str, Any], Iterator[Any]]]:
    """Yields facts about a local file or standard input (`-`), and an iterator over its sentences or rows.

    Raises:
        OSError: the file cannot be opened.
        UnsupportedMedia, InvalidInput, EmptyInput, TooLarge: for the reasons given at `read_isolated`; the message
            names the file, and has options of the command line instead of parameters of the API.
    """
    reading = replace(reading, kind=reading.kind or kind_of_name(path.name))
    with ExitStack() as stack:
        out = stack.enter_context(tempfile.TemporaryFile())
        if path == STDIN:
            file: BinaryIO = stack.enter_context(tempfile.TemporaryFile())
            shutil.copyfileobj(stack.enter_context(open(0, "rb", closefd=False)), file)
            file.flush()
        else:
            file = stack.enter_context(path.open("rb"))
        try:
            facts = read_isolated(file, reading, limits, out)
        except errors.IsosimError as error:
            name = "standard input" if path == STDIN else path
            raise type(error)(f"{name}: {as_options(str(error))}") from None
        out.seek(0)
        yield facts, (json.loads(line) for line in out)


def as_options(message: str) -> str:
    """A message with the API's parameters written as command-line options: `column=` becomes `--column `."""
    return re.sub(r"\b(column|charset|format|sheet|header)=", r"--\1 ", message).replace("force=true", "--force")


def held_whole(file: BinaryIO) -> bool:
    """Whether the parser holds the whole file or large parts of it in memory: True for workbooks and Parquet."""
    return os.pread(file.fileno(), 4, 0) in (b"PK\x03\x04", b"PAR1")


def too_much(memory: int) -> str:
    return (
        f"the file cannot be read within {memory >> 20:,} MB of memory and {SECONDS} seconds; send only the column "
        "with the sentences, as plain text or CSV. Possible causes are very many columns, one huge cell, or a cell far "
        "outside the table in a workbook; delete such a cell"
    )


def main(wanted: str) -> None:
    """The entry point of the child process. It sets its limits before it reads the file."""
    given, bounds = json.loads(wanted)
    reading, limits = Reading(**given), Limits(**bounds)
    bound(limits.size, limits.memory)
    try:
        with open(0, "rb", closefd=False) as file, open(1, "wb", closefd=False) as out:
            said: list[Any] = ["facts", facts_of(file, reading, limits, out)]
    except errors.IsosimError as error:
        said = [type(error).__name__, str(error)]
    except MemoryError:
        said = ["InvalidInput", too_much(limits.memory)]
    except OSError as error:
        said = ["InvalidInput", f"the file cannot be read: {error}"]
        if error.errno == errno.EFBIG:
            said = ["TooLarge", f"the file holds more than {limits.size:,} bytes of text; send a random sample of it"]
    except BaseException as error:  # a panic of a Rust library is not an Exception, and its class cannot be imported
        if type(error).__name__ != "PanicException":
            raise
        said = ["InvalidInput", "the workbook cannot be read; save it again, or as CSV"]
    print(json.dumps(said), file=sys.stderr)


def bound(size: int, memory: int) -> None:
    """Limits this process's memory, processor time and output (`size` bytes), and takes away its network. If the
    machine runs out of memory, the kernel kills this process before the server."""
    os.nice(10)
    with suppress(OSError):  # oom_score_adj exists only on Linux, and not in every sandbox
        Path("/proc/self/oom_score_adj").write_text("1000")
    with suppress(OSError, AttributeError):  # Linux only; many containers do not allow it
        ctypes.CDLL(None).unshare(NEW_USER | NEW_NETWORK)
    wanted = {"RLIMIT_CPU": SECONDS, "RLIMIT_DATA": memory, "RLIMIT_FSIZE": size, "RLIMIT_CORE": 0}
    for name, most in wanted.items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (least, least))


def facts_of(file: BinaryIO, reading: Reading, limits: Limits, out: BinaryIO) -> dict[str, Any]:
    """Reads the whole file, writes its sentences or rows to `out` if they are requested, and returns the facts."""
    whole = reading.give in ("rows", "numbered_rows")
    kind = None if whole and reading.kind == "text" else reading.kind  # rows of a text are requested if it is a table
    table = open_table(
        file, kind, charset=reading.charset, sheet=reading.sheet, header=reading.header, force=reading.force
    )
    facts: dict[str, Any] = {
        "format": table.kind,
        "encoding": table.encoding,
        "encoding_certain": table.certain,
        "separator": table.separator,
        "header": table.header is not None,
        "sheet": table.sheet,
        "sheets": table.sheets[:SHOWN_COLUMNS],
        "columns": [name[:SHOWN_CHARACTERS] for name in table.columns[:SHOWN_COLUMNS]],
    }
    if whole:
        count = 0
        for count, (number, cells) in enumerate(table.filled(), 1):
            if count == 1 and table.header is not None:
                write(out, table.header[1] if reading.give == "rows" else table.header)
            write(out, cells if reading.give == "rows" else [number, cells])
            if count > limits.sentences:
                raise errors.InvalidInput(f"the table has more than {limits.sentences:,} rows")
        return facts
    chosen = table.suggested if reading.column is None and reading.give == "facts" else table.index(reading.column)
    facts["column"] = table.columns[chosen]
    preview = [[cell[:SHOWN_CHARACTERS] for cell in cells[:SHOWN_COLUMNS]] for _, cells in table.first[:SHOWN_ROWS]]
    facts |= {"rows": preview} | sentences(table, chosen, limits, out if reading.give == "sentences" else None)
    if reading.give == "sentences" and chosen != table.suggested:
        facts["likelier"] = table.hint
    return facts


def sentences(table: Table, column: int, limits: Limits, out: BinaryIO | None) -> dict[str, Any]:
    """Counts the sentences of a column, and writes those that are not too long.

    Raises:
        InvalidInput: a sentence is not valid text, there are too many, all are too long, or most are codes.
    """
    count = empty = longest = codes = 0
    too_long: list[int] = []
    distinct: set[int] = set()
    for number, text in table.sentences(column):
        if not text:
            empty += 1
            continue
        check_decoded(text, table.place(number))
        longest = max(longest, len(text))
        if len(text) > limits.characters:
            too_long.append(number)
            continue
        count += 1
        codes += is_code(text)
        distinct.add(hash(text))
        if count > limits.sentences:
            raise errors.InvalidInput(
                f"the column holds more than {limits.sentences:,} sentences; send a random sample of 20,000"
            )
        if out is not None:
            write(out, text)
    if out is not None and len(table.columns) > 1 and codes > max(FEW_ROWS - 1, MOST * count):
        raise errors.InvalidInput(
            f"column: {table.columns[column]!r} holds numbers or identifiers, not sentences; try column={table.hint}"
        )
    if out is not None and too_long and not count:
        raise errors.InvalidInput(
            f"all sentences of the file are longer than {limits.characters:,} characters: {some(too_long)}"
        )
    return {
        "sentences": count,
        "distinct": len(distinct),
        "empty": empty + table.blank,
        "too_long": len(too_long),
        "too_long_rows": too_long[:PLACES],
        "longest": longest,
    }


def write(out: BinaryIO, entry: Any) -> None:
    out.write(json.dumps(entry, ensure_ascii=False).encode() + b"\n")


def some(rows: list[int], count: int | None = None) -> str:
    """`rows` as words, for example `12 (rows 1, 2, 3, 4, 5, …)`. `count`: their number, if the list was cut."""
    count = count or len(rows)
    return f"{count:,} (rows {', '.join(map(str, rows[:PLACES]))}{', …' * (count > PLACES)})"


def other_column(facts: dict[str, Any]) -> str:
    """Text to append to an error message about a column: names the column that most likely contains the sentences.
    Empty if the right column was read."""
    if "likelier" not in facts:
        return ""
    return (
        f"; column {facts['column'][:80]!r} was read; the one that most likely holds the sentences is "
        f"column={facts['likelier'][:80]}"
    )


def what_was_read(facts: dict[str, Any], sheet: str | None = None) -> list[str]:
    """Notices about guesses and about rows that were left out. `sheet`: the sheet that the caller named, if any."""
    notices = []
    if not facts["encoding_certain"]:
        notices.append(
            f"the file is not UTF-8 and was read as {facts['encoding']}, a guess; charset=NAME names another encoding"
        )
    if len(facts["sheets"]) > 1 and sheet is None:
        others = ", ".join(name for name in facts["sheets"][:PLACES] if name != facts["sheet"])
        notices.append(f"the sheet {facts['sheet']!r} of the workbook was read; others (sheet=NAME) are {others}")
    if facts["too_long"]:
        left_out = some(facts["too_long_rows"], facts["too_long"])
        notices.append(f"sentences left out because they are too long: {left_out}")
    return notices


if __name__ == "__main__":
    main(sys.argv[1])
