"""Reads an untrusted file in a child process with limits on memory, processor time and output, and without network.

Without limits, a workbook of 2 kB could end the server: if its only cell is in the last corner of the sheet, the parser
needs 50 GB of memory. The child process gets the file as standard input, and writes entries or rows to standard output
(a file). The last line of standard error contains facts about the file, or why the file is refused.
"""

import ctypes
import errno
import itertools
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal

from isosim import errors
from isosim.jobs.intake import PLACES, Brought, Intake, Limits, entries_of
from isosim.jobs.posted import temporary_file
from isosim.jobs.tables import KINDS, Kind, Table, kind_of_name, open_table
from isosim.jobs.text_lines import STDIN

# `entries`: sentences, labelled pairs and vectors. `labels`: labelled pairs alone. `texts`: for each row with a text,
# the row's number, the text, and the cells of the other columns.
Give = Literal["facts", "entries", "labels", "rows", "texts"]

MEMORY_OF_LINES = 3 << 27  # maximum bytes of memory to read a file line by line; 100 MB of CSV or NDJSON needed 200 MB
LEAST_MEMORY = 3 << 25  # lowest memory limit of the child process, in bytes; with 64 MiB, reading Parquet fails
SECONDS = 60  # maximum seconds of processor time; a workbook of 1,000,000 rows and five columns needed 9 s
PATIENCE = 100  # wall-clock seconds until the child is killed; less than the 120 s that a request may take
LOOK = 0.1  # seconds between checks whether the client has disconnected
SHOWN_ROWS, SHOWN_COLUMNS, SHOWN_CHARACTERS = 10, 100, 200  # maximum rows, columns and characters per cell in a preview
NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000  # flags of unshare(2)


@dataclass(frozen=True)
class Reading:
    """What to return from a file (`give`), which column to read, and what is declared of the file.

    The whole file is read even for facts alone, because the facts include the number of sentences.
    """

    give: Give = "facts"
    column: str | None = None
    kind: Kind | Literal["npy"] | None = None
    charset: str | None = None
    sheet: str | None = None
    header: bool | None = None
    force: bool = False  # each line of a text is a sentence, even if the lines look like a table
    labels: str = "matches"  # what labels mean (LABEL_KINDS)
    brought: Brought | None = None  # None: text is wanted, not vectors

    def __post_init__(self) -> None:
        if self.kind is not None and self.kind not in (*KINDS, "npy"):
            raise errors.InvalidInput(f"format: {self.kind[:40]!r} is not known; known are {', '.join(KINDS)}")


def read_isolated(
    file: BinaryIO,
    reading: Reading,
    limits: Limits,
    out: BinaryIO | None = None,
    left: threading.Event | None = None,
    *,
    vectors: BinaryIO | None = None,
) -> dict[str, Any]:
    """Reads a file and returns facts about it. Writes its entries or rows to `out` as JSON, one in each line, and its
    vectors to `vectors` as `.npy`.

    Args:
        file, out, vectors: files with a file descriptor. `file` is read from its beginning. A `.npy` is not written
            again: `file` and `vectors` are the same.
        left: set by another thread when the client has disconnected; the child process is then killed.

    Raises:
        UnsupportedMedia, InvalidInput, EmptyInput, TooLarge: for the reasons given at `open_table` and `Intake`, or
            because a limit is reached.
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
    descriptor = None if vectors is None else vectors.fileno()
    with subprocess.Popen(  # noqa: S603 - our own interpreter and module
        [sys.executable, "-P", "-m", __name__, json.dumps([asdict(reading), asdict(limits), descriptor])],
        stdin=file,
        pass_fds=() if descriptor is None else (descriptor,),
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
def read_path(
    path: Path, reading: Reading, limits: Limits, vectors: BinaryIO | None = None
) -> Iterator[tuple[dict[str, Any], Iterator[Any]]]:
    """Yields facts about a local file or standard input (`-`), and an iterator over its entries or rows. Writes its
    vectors to `vectors`.

    Raises:
        OSError: the file cannot be opened.
        UnsupportedMedia, InvalidInput, EmptyInput, TooLarge: for the reasons given at `read_isolated`; the message
            names the file.
    """
    reading = replace(reading, kind=reading.kind or kind_of_name(path.name))
    with ExitStack() as stack:
        out = stack.enter_context(temporary_file())
        if path == STDIN:
            file: BinaryIO = stack.enter_context(temporary_file())
            shutil.copyfileobj(stack.enter_context(open(0, "rb", closefd=False)), file)
            file.flush()
        else:
            file = stack.enter_context(path.open("rb"))
        try:
            facts = read_isolated(file, reading, limits, out, vectors=vectors)
        except errors.IsosimError as error:
            name = "standard input" if path == STDIN else path
            raise type(error)(f"{name}: {error}") from None
        out.seek(0)
        yield facts, (json.loads(line) for line in out)


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
    given, bounds, descriptor = json.loads(wanted)
    given["brought"] = given["brought"] and Brought(**given["brought"])
    reading, limits = Reading(**given), Limits(**bounds)
    bound(limits.size, limits.memory)
    try:
        with ExitStack() as stack:
            file, out = (stack.enter_context(open(*how, closefd=False)) for how in ((0, "rb"), (1, "wb")))
            vectors = None if descriptor is None else stack.enter_context(open(descriptor, "r+b", closefd=False))
            said: list[Any] = ["facts", facts_of(file, reading, limits, out, vectors)]
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
    print(json.dumps(said), file=sys.stderr, flush=True)
    os._exit(0)  # no destructor writes behind the last line


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


def facts_of(
    file: BinaryIO, reading: Reading, limits: Limits, out: BinaryIO, vectors: BinaryIO | None
) -> dict[str, Any]:
    """Reads the whole file, writes its entries or rows if they are requested, and returns the facts."""
    wanted = reading.give in ("entries", "labels")
    brought = reading.brought is not None
    intake = Intake(limits, out if wanted else None, vectors, kind=reading.labels, brought=brought)
    if reading.kind == "npy":
        if reading.brought is None:
            raise errors.UnsupportedMedia("a .npy holds vectors, and text is wanted")
        intake.take_npy(reading.brought)
        return intake.facts
    table = open_table(
        file,
        # A text may be a table of labels, or of cells to show.
        None if reading.kind == "text" and reading.give in ("rows", "labels") else reading.kind,
        charset=reading.charset,
        sheet=reading.sheet,
        header=reading.header,
        column=reading.column,
        force=reading.force,
    )
    intake.place = table.place
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
    if reading.give == "rows":
        write_rows(table, limits, out)
        return facts
    if reading.give == "texts":
        chosen = table.index(reading.column)
        facts["other_columns"] = [name for place, name in enumerate(table.columns) if place != chosen]
        intake.take(with_other_cells(table, chosen, limits, out))
        facts |= {"column": table.columns[chosen]} | intake.facts
        facts["notices"] += guesses(table, reading)
        return facts
    chosen = table.suggested if reading.column is None else table.index(reading.column)
    if wanted:
        intake.take(entries_of(table, reading.column, reading.brought, labels=reading.give == "labels"))
        intake.close(labels=reading.give == "labels")
    else:
        intake.take(table.sentences(chosen))
        shown = [[cell[:SHOWN_CHARACTERS] for cell in cells[:SHOWN_COLUMNS]] for cells in table.first[:SHOWN_ROWS]]
        facts["rows"] = shown
    facts |= {"column": table.columns[chosen]} | intake.facts
    facts["empty"] += table.blank
    if chosen != table.suggested:
        facts["notices"].append(f"{table.columns[chosen][:80]!r} was read; the longest text is in {table.hint}")
    facts["notices"] += guesses(table, reading)
    return facts


def guesses(table: Table, reading: Reading) -> list[str]:
    """What was chosen without being asked for."""
    found = []
    if not table.certain:
        found.append(f"the file is not UTF-8 and was read as {table.encoding}, a guess; charset names another encoding")
    if len(table.sheets) > 1 and reading.sheet is None:
        others = ", ".join(name for name in table.sheets[:PLACES] if name != table.sheet)
        found.append(f"the longest sheet, {table.sheet!r}, was read; sheet names another: {others}")
    return found


def with_other_cells(table: Table, chosen: int, limits: Limits, out: BinaryIO) -> Iterator[tuple[int, str]]:
    """Yields the number and the text of each row. Writes those with a text that is short enough, with their other
    cells."""
    width = len(table.columns)
    for number, row in table.filled():
        cells = row + [""] * (width - len(row))
        text = " ".join(cells[chosen].split("\n")).strip()
        yield number, text  # checked and counted before it is written
        if text and len(text) <= limits.characters:
            others = [cell for place, cell in enumerate(cells) if place != chosen]
            out.write(json.dumps([number, text, others], ensure_ascii=False).encode() + b"\n")


def write_rows(table: Table, limits: Limits, out: BinaryIO) -> None:
    """Writes the rows of a table, after its header."""
    header = [] if table.header is None else [table.header]
    for count, (_, cells) in enumerate(itertools.chain(header, table.filled())):
        if count >= limits.sentences + len(header):
            raise errors.InvalidInput(f"the table has more than {limits.sentences:,} rows")
        out.write(json.dumps(cells, ensure_ascii=False).encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1])
