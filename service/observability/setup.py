"""Sets up what a process reports: one form of log line for Python, uvicorn and RQ alike, and traces where wanted."""

import logging
import sys
import threading
import time
from typing import TYPE_CHECKING, Literal

from service.core.errors import Unavailable
from service.observability.lines import Facts, LineHandler, Render, about, as_json, as_text
from service.observability.sink import DirectSink, QueuedSink
from service.settings import Settings, otel_endpoint

if TYPE_CHECKING:
    from service.observability.otlp import Tracing

Form = Literal["auto", "json", "text"]

# At the level asked for. Other libraries only warn: at `debug` some of them print headers and bodies.
OUR_LOGGERS = ("isosim", "service", "uvicorn", "rq")
STDERR = 2

STARTED = time.perf_counter()  # the first of ours that a serving process imports

log = logging.getLogger("isosim")


class Output:
    """Where this process's lines go."""

    def __init__(self, render: Render, sink: DirectSink | QueuedSink) -> None:
        self.render, self.sink = render, sink

    @property
    def structured(self) -> bool:
        return self.render is as_json

    def line(self, level: str, logger: str, message: str, facts: Facts) -> None:
        """A line without a logging.LogRecord, which costs three times the line (measured: loadtest/logs.py)."""
        self.sink.write(self.render(time.time(), level, logger, message, {**about.get(), **facts}))


_output: Output | None = None  # one a process, as it has one stderr and logging one root


def output() -> Output | None:
    """None where nothing was configured: under a test, or in a command that is no server."""
    return _output


def chosen(form: Form) -> Render:
    """A person reads a terminal; whatever else reads stderr is a program (a container's log, a file, a pipe)."""
    if form == "auto":
        form = "text" if sys.stderr is not None and sys.stderr.isatty() else "json"
    return as_text if form == "text" else as_json


def configure(level: str, form: Form, *, queued: bool = False) -> Output:
    """All that this process logs from here on. `queued`: by a thread, for a process with an event loop."""
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
    """Writes what waits, before the process ends in a way that Python does not see."""
    if _output is not None:
        _output.sink.close()


def uncaught(error: BaseException | None) -> None:
    """Logs an exception that Python itself would print together with its words."""
    if not isinstance(error, KeyboardInterrupt | SystemExit):
        log.critical("an exception was not handled", exc_info=error)


def tracing(settings: Settings, name: str) -> "Tracing | None":
    """The tracing under this service name, where an endpoint is set. Raises Unavailable, as `tracing_class` does."""
    kind = tracing_class(settings)
    return None if kind is None else kind(settings.otlp_endpoint, name)


def tracing_class(settings: Settings) -> "type[Tracing] | None":
    """None where nothing is traced.

    Raises:
        Unavailable: an endpoint is set, and the packages are not installed.
    """
    if settings.otlp_endpoint is None and not otel_endpoint():
        return None
    try:
        from service.observability.otlp import Tracing  # noqa: PLC0415
    except ImportError as error:
        raise Unavailable(
            f"tracing needs {error.name}, which is not installed: pip install 'isosim[tracing]'"
        ) from None
    return Tracing
