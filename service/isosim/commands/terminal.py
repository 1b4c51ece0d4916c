"""Terminal output: results on stdout (tables, tabs, JSON), progress and errors on stderr, exit codes."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import typer

from isosim.errors import Action, IsosimError


def dumped(value: object) -> bytes:
    """JSON on one line, written like the API's answers: NaN as null, and a float32 in its shortest form."""
    import orjson  # noqa: PLC0415 - help and shell completion need only typer

    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_SERIALIZE_DATACLASS)


def print_json(value: object) -> None:
    print(dumped(value).decode())


def answer(facts: object, text: str, *, as_json: bool) -> None:
    """Prints the result of a command, as JSON or in words."""
    print(dumped(facts).decode() if as_json else text)


def remark(text: str) -> None:
    """Prints a line to stderr."""
    print(text, file=sys.stderr, flush=True)


def tabbed(cells: Iterable[str]) -> str:
    """A line of TSV; tabs and line breaks inside a cell become spaces."""
    return "\t".join(cell.replace("\t", " ").replace("\n", " ").replace("\r", " ") for cell in cells)


def show(columns: Sequence[str], rows: Iterable[Sequence[object]], *, head: bool = False) -> None:
    """Prints a table on a terminal, and TSV otherwise. With `head`, the TSV begins with a header line."""
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for row in [columns, *cells] if head else cells:
            print(tabbed(row))
        return
    from rich.console import Console  # noqa: PLC0415 - not needed for TSV
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table(*columns)
    for row in cells:
        table.add_row(*map(escape, row))
    Console().print(table)


class Report(Protocol):
    """A function that takes the name of a stage and the share that is finished: 0 to 1, or None if unknown."""

    def __call__(self, stage: str, done: float | None) -> None: ...


@contextmanager
def bar(what: str, *, wanted: bool = True) -> Iterator[Report]:
    """Yields a function that shows progress reports as a bar. `wanted`: False for no bar, for example because results
    are printed to the terminal at the same time."""
    if not (wanted and sys.stderr.isatty()):
        yield lambda stage, done: None
        return
    from rich.console import Console  # noqa: PLC0415 - not needed without a terminal
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description:>10}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    # redirect_stdout=False: results go straight to stdout. Only lines on stderr are printed above the bar.
    with Progress(
        *columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True, redirect_stdout=False
    ) as progress:
        task = progress.add_task(what, total=None)
        yield lambda stage, done: progress.update(
            task, description=stage, completed=done or 0.0, total=None if done is None else 1.0
        )


@contextmanager
def steps(first: str) -> Iterator[Callable[[str], None]]:
    """Yields a function that shows, in a bar and on stderr, what a command does now. `first`: what it does first."""
    with bar(first) as progress:

        def say(step: str) -> None:
            progress(step, None)
            remark(f"  {step}")

        yield say


# How each action is taken on the command line.
REMEDIES = {
    Action.ADD_ENCODER: "isosim encoder add NAME --dimensions N --unit-vectors",
    Action.ADD_LABELS: "give it some: isosim label FILE --domain {domain}",
    Action.ASK_LESS: "--precision {precision} lets {pairs} pairs pass",
    Action.CALIBRATE: "calibrate it from text: isosim calibrate FILE --domain {domain}",
    Action.DELETE_THRESHOLD: "delete one first: DELETE /domains/{domain}/thresholds/NAME",
    Action.EXPORT: "export it: isosim export --encoder {source}",
    Action.JUDGE: "isosim match --match {match} --judge 50",
    Action.LIST_DOMAINS: "isosim domains lists the domains",
    Action.LIST_MODELS: "isosim domains lists the domains, each of which is a model",
    Action.LIST_THRESHOLDS: "isosim domains lists those that are saved",
    Action.NEW_KEY: "ask the server's operator for one: isosim keys new --scopes {scope} --add FILE",
    Action.REPAIR: "rebuild it: isosim store repair {domain}",
}
DONE, FAILED, MISUSED, INTERRUPTED = 0, 1, 2, 130
EPILOG = "Exit codes: 0 done, 1 error, 2 invalid command line or setting, 130 interrupted."


def group(about: str) -> typer.Typer:
    """A command that consists of subcommands."""
    return typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help=about, epilog=EPILOG)


class ReaderLeft(Exception):
    """The program that reads the output has closed the pipe (`| head`)."""


def complain(message: str) -> None:
    """Prints an error as one line on stderr."""
    remark("isosim: " + " ".join(message.split()))


def ended(command: Callable[[], Any]) -> int:
    """Runs a command, prints its error if it fails, and returns its exit code."""
    try:
        code = command()
        sys.stdout.flush()  # raises BrokenPipeError if the pipe is closed
    except KeyboardInterrupt:
        code = INTERRUPTED
    except (BrokenPipeError, ReaderLeft):
        # Redirects stdout to the null device: flushing the closed pipe at exit would print another error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = DONE
    except typer.Abort:  # Ctrl-C or Ctrl-D at a question
        code = INTERRUPTED
    except typer.TyperException as error:
        code = say_misuse(error)
    except (IsosimError, OSError) as error:
        complain(in_one_line(error))
        code = FAILED
    except ValueError as error:
        # Only pydantic's ValidationError has `errors`. A test with `isinstance` would need a slow import.
        if not hasattr(error, "errors"):
            raise
        for problem in invalid_settings(error):
            complain(problem)
        code = MISUSED
    if code == INTERRUPTED:
        complain("interrupted")
    return code if isinstance(code, int) else DONE


def in_one_line(error: IsosimError | OSError) -> str:
    """An error's message with its remedy; for a file, its path and what is wrong."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, IsosimError) and error.remedy is not None:
        return f"{error}; {REMEDIES[error.remedy.action].format_map(error.remedy.arguments)}"
    return str(error)


def invalid_settings(error: Any) -> list[str]:
    """Describes each error of a ValidationError of the settings. Quotes no value: an address may hold a password."""
    return [f"ISOSIM_{'_'.join(map(str, problem['loc'])).upper()}: {problem['msg']}" for problem in error.errors()]


def say_misuse(error: typer.TyperException) -> int:
    """Prints an error of the command line and the command that shows the help; returns the exit code."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message(), file=sys.stderr)
    else:
        path = context.command_path if context is not None else "isosim"
        complain(f"{error.format_message().rstrip('.')} (see {path} --help)")
    return error.exit_code
