"""How a command ends: what its user caused is said in one line on stderr; nothing ends in a traceback.

0 done · 1 a stated error · 2 a wrong command line or setting · 130 interrupted.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

import typer

from service.core.errors import IsosimError

DONE, FAILED, MISUSED, INTERRUPTED = 0, 1, 2, 130
EPILOG = "Exit codes: 0 done, 1 a stated error, 2 a wrong command line or setting, 130 interrupted."


class ReaderLeft(Exception):
    """Whoever reads our output has had enough (`| head`)."""


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
        complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        code = FAILED
    except ValueError as error:
        if not hasattr(error, "errors"):  # pydantic's ValidationError; its import costs what other commands do not need
            raise
        for found in error.errors():
            complain(f"ISOSIM_{'_'.join(str(part) for part in found['loc']).upper()}: {found['msg']}")
        code = MISUSED
    if code == INTERRUPTED:
        complain("interrupted")
    return code if isinstance(code, int) else DONE


def say_misuse(error: typer.TyperException) -> int:
    """A wrong command line, with the help that would set it right."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message(), file=sys.stderr)
    else:
        path = context.command_path if context is not None else "isosim"
        complain(f"{error.format_message().rstrip('.')} (see {path} --help)")
    return error.exit_code
