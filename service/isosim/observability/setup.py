"""Sets up logs and traces of a process. Log lines of Python and uvicorn have the same format."""

import logging
import sys
import threading
import time
from typing import TYPE_CHECKING, Literal

from isosim.errors import Unavailable
from isosim.observability.lines import Facts, LineHandler, Render, about, as_json, as_text
from isosim.observability.sink import DirectSink, QueuedSink
from isosim.settings import otel_endpoint

if TYPE_CHECKING:
    from isosim.observability.otlp import Tracing

Form = Literal["auto", "json", "text"]

# These loggers use the configured level. All others use `warning`, because some libraries log headers and bodies at
# `debug`.
OUR_LOGGERS = ("isosim", "uvicorn")
STDERR = 2

STARTED = time.perf_counter()  # roughly the start of the process, because a server imports this module early

log = logging.getLogger("isosim")


class Output:
    """The format and the destination of this process's log lines."""

    def __init__(self, render: Render, sink: DirectSink | QueuedSink) -> None:
        self.render, self.sink = render, sink

    @property
    def structured(self) -> bool:
        return self.render is as_json

    def line(self, level: str, logger: str, message: str, facts: Facts) -> None:
        """Writes a line without a logging.LogRecord. With a record, it takes three times as long (loadtest/logs.py)."""
        self.sink.write(self.render(time.time(), level, logger, message, {**about.get(), **facts}))


_output: Output | None = None  # one per process, because a process has one stderr and one root logger


def output() -> Output | None:
    """The output that `configure` made; None before `configure` was called."""
    return _output


def chosen(form: Form) -> Render:
    """The function that formats lines. `auto`: text if stderr is a terminal, otherwise JSON."""
    if form == "auto":
        form = "text" if sys.stderr is not None and sys.stderr.isatty() else "json"
    return as_text if form == "text" else as_json


def configure(level: str, form: Form, *, queued: bool = False) -> Output:
    """Configures all logging of this process. If `queued`, a thread writes the lines and callers need not wait."""
    global _output  # noqa: PLW0603
    sink = QueuedSink(STDERR) if queued else DirectSink(STDERR)
    _output = Output(chosen(form), sink)
    root = logging.getLogger()
    root.handlers[:] = [LineHandler(_output.render, sink.write)]
    root.setLevel(logging.WARNING)
    for name in OUR_LOGGERS:
        logging.getLogger(name).setLevel(level.upper())
    logging.captureWarnings(True)
    sys.excepthook = lambda _, error, __: uncaught(error)
    sys.unraisablehook = lambda args: uncaught(args.exc_value)
    threading.excepthook = lambda args: uncaught(args.exc_value)
    return _output


def flush() -> None:
    """Writes queued lines; call it before the process ends without Python's normal shutdown."""
    if _output is not None:
        _output.sink.close()


def uncaught(error: BaseException | None) -> None:
    """Logs an unhandled exception without its message, because the message may contain a caller's text."""
    if not isinstance(error, KeyboardInterrupt | SystemExit):
        log.critical("an exception was not handled", exc_info=error)


def tracing(name: str) -> "Tracing | None":
    """Tracing under the service name `name`; None if no endpoint is set. Raises Unavailable if packages are missing."""
    kind = tracing_class()
    return None if kind is None else kind(name)


def tracing_class() -> "type[Tracing] | None":
    """The class `Tracing`, imported only if an endpoint is set; otherwise None.

    Raises:
        Unavailable: an endpoint is set, but the packages are not installed.
    """
    if not otel_endpoint():
        return None
    try:
        from isosim.observability.otlp import Tracing  # noqa: PLC0415
    except ImportError as error:
        raise Unavailable(
            f"tracing needs {error.name}, which is not installed: pip install 'isosim[tracing]'"
        ) from None
    return Tracing
