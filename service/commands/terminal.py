"""The terminal: results on stdout (tables, tabs, JSON), progress on stderr, and how a command ends."""

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import typer

from service.core.errors import IsosimError

PLAIN_WIDTH = 200  # characters of a table that is not printed to a terminal


def dumped(value: object) -> bytes:
    """JSON on one line; a NaN becomes null and a float32 keeps its shortest form, as over HTTP."""
    import orjson  # noqa: PLC0415 - the help and the shell's completion need typer alone

    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_SERIALIZE_DATACLASS)


def print_json(value: object) -> None:
    print(dumped(value).decode())


def remark(text: str) -> None:
    """A line on stderr beside the results."""
    print(text, file=sys.stderr, flush=True)


def tabbed(cells: Iterable[str]) -> str:
    """A line of a TSV file: a tab or a line's end within a cell becomes a space."""
    return "\t".join(cell.replace("\t", " ").replace("\n", " ").replace("\r", " ") for cell in cells)


def show(columns: Sequence[str], rows: Iterable[Sequence[object]], *, head: bool = False) -> None:
    """A table on a terminal; lines with tabs where a program reads, with a head only where `head` says so."""
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for row in [columns, *cells] if head else cells:
            print(tabbed(row))
        return
    from rich.markup import escape  # noqa: PLC0415 - a program that reads need not wait for it
    from rich.table import Table  # noqa: PLC0415

    table = Table(*columns)
    for row in cells:
        table.add_row(*map(escape, row))
    print_table(table)


def print_table(table: "Table") -> None:
    """As it is drawn, also where a file takes it."""
    from rich.console import Console  # noqa: PLC0415

    Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH).print(table)


PATIENCE = 1.0  # s
SHOWN = 80  # characters of a setting in a message
NUMBERS = {  # by pydantic's type of an error
    "float_parsing": "a number",
    "int_parsing": "a whole number",
    "less_than_equal": "{le:g} or less",
    "less_than": "less than {lt:g}",
    "greater_than_equal": "{ge:g} or more",
    "greater_than": "more than {gt:g}",
}
SHARES = {"fmr", "precision", "false_hit_rate"}  # options that people give in per cent
MOST_FILES = 1000  # of a folder that are looked through for one with a similar name


class Report(Protocol):
    """Takes a stage and the share done, 0 to 1; None where it cannot be known."""

    def __call__(self, stage: str, done: float | None) -> None: ...


class LateBar:
    """A bar that appears once the work has lasted for a second."""

    def __init__(self, *, shown: bool) -> None:
        self.shown = shown
        self.began = time.monotonic()
        self._progress: Any = None
        self._task: Any = None

    def __call__(self, stage: str, done: float | None) -> None:
        if not self.shown or (self._progress is None and time.monotonic() - self.began < PATIENCE):
            return
        if self._progress is None:
            self._progress = self._start(stage)
        total = None if done is None else 1.0
        self._progress.update(self._task, description=stage, completed=done or 0.0, total=total)

    def _start(self, stage: str) -> Any:
        from rich.console import Console  # noqa: PLC0415 - what takes less than a second need not import it
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

        columns = (TextColumn("{task.description:>10}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
        # Results keep going to stdout: only what is said on stderr is moved above the bar.
        progress = Progress(
            *columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True, redirect_stdout=False
        )
        self._task = progress.add_task(stage, total=None)
        progress.start()
        return progress

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()


@contextmanager
def bar(what: str, *, wanted: bool = True) -> Iterator[Report]:
    """Yields the function that the work reports to. `wanted` is False where something else fills the terminal."""
    late = LateBar(shown=wanted and sys.stderr.isatty())
    late(what, None)
    try:
        yield late
    finally:
        late.stop()


DONE, FAILED, MISUSED, INTERRUPTED = 0, 1, 2, 130
EPILOG = "Exit codes: 0 done, 1 a stated error, 2 a wrong command line or setting, 130 interrupted."


class ReaderLeft(Exception):
    """The program that reads our output has closed the pipe (`| head`)."""


def complain(message: str) -> None:
    """One line on stderr, red on a terminal."""
    line = "isosim: " + " ".join(message.split())
    coloured = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    print(typer.style(line, fg="red") if coloured else line, file=sys.stderr, flush=True)


def ended(command: Callable[[], Any]) -> int:
    """Runs a command and gives its exit code."""
    try:
        code = command()
        sys.stdout.flush()  # here, where a closed pipe can still be told from a bug
    except KeyboardInterrupt:
        code = INTERRUPTED
    except (BrokenPipeError, ReaderLeft):
        # Python would complain again when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = DONE
    except typer.Abort:  # Ctrl-C or Ctrl-D at a question
        code = INTERRUPTED
    except typer.TyperException as error:
        code = say_misuse(error)
    except IsosimError as error:
        complain(str(error))
        code = FAILED
    except OSError as error:
        complain(f"{error.filename}: {error.strerror}{near_file(error)}" if error.filename else str(error))
        code = FAILED
    except ValueError as error:
        if not hasattr(error, "errors"):  # pydantic's ValidationError; its import costs what other commands do not need
            raise
        for problem in error.errors():
            name = f"ISOSIM_{'_'.join(str(part) for part in problem['loc']).upper()}"
            complain(f"{name}: {in_words(problem)}")
        code = MISUSED
    if code == INTERRUPTED:
        complain("interrupted")
    return code if isinstance(code, int) else DONE


def in_words(problem: Mapping[str, Any]) -> str:
    """One of pydantic's errors. The value is repeated of numbers alone: a refused address may hold a password."""
    wanted = NUMBERS.get(problem["type"])
    if wanted is None:
        return str(problem["msg"])
    return f"{str(problem['input'])[:SHOWN]!r} is given; it must be {wanted.format_map(problem.get('ctx', {}))}"


def near_file(error: OSError) -> str:
    """For a file that is not there: the one of its folder that may be meant, or where a relative path starts."""
    if not isinstance(error, FileNotFoundError) or not isinstance(error.filename, str):
        return ""
    from service.core.wording import nearest  # noqa: PLC0415 - the help needs none of it

    path = Path(error.filename)
    try:
        there = {name.lower(): name for name in sorted(os.listdir(path.parent))[:MOST_FILES]}  # noqa: PTH208 - names
    except OSError:
        return f"; there is no folder {path.parent}"
    near = nearest(path.name, there, 0.7)
    if near is not None:
        return f"; did you mean {path.parent / there[near]}?"
    return "" if path.is_absolute() else f"; the path starts at {Path.cwd()}"


def say_misuse(error: typer.TyperException) -> int:
    """A wrong command line, with the help that would set it right."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message(), file=sys.stderr)
    else:
        path = context.command_path if context is not None else "isosim"
        problems = getattr(error.__cause__, "errors", None)
        option = getattr(getattr(error, "param", None), "name", None)
        if isinstance(error, typer.BadParameter) and problems is not None:
            error.message = in_words(problems()[0]) + ("; 1 % is 0.01" if option in SHARES else "")
        complain(f"{error.format_message().rstrip('.')} (see {path} --help)")
    return error.exit_code
