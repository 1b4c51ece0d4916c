"""The log of a process: one line for each event, JSON for machines, plain text for a terminal. Never texts or keys.

A server's lines go through a queue, so that a slow or stopped reader of stderr blocks no request.
"""

import logging
import os
import queue
import re
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType, TracebackType
from typing import Literal

import orjson

from isosim.errors import Conflict, IsosimError, NotReady, Unavailable

Form = Literal["auto", "json", "text"]
Facts = Mapping[str, object]
Render = Callable[[float, str, str, str, Facts], bytes]

# These loggers use the configured level. All others use `warning`, because some libraries log headers and bodies at
# `debug`.
OUR_LOGGERS = ("isosim", "uvicorn")
NAMES = {"uvicorn.error": "uvicorn"}  # uvicorn logs everything under this name, not only errors
STDERR = 2
MESSAGE = 2000  # maximum number of characters of a message, so that a line fits into one atomic write to a pipe
CAPACITY = 10_000  # maximum number of lines in the queue, some 4 MB
PAUSE = 0.02  # seconds that the writer waits for more lines, so that it wakes at most 50 times a second
FRAMES = 40  # maximum number of logged frames per stack (the innermost ones); an endless recursion has 1,000 frames
CONTROL = re.compile(r"(\x1b\[[0-9;]*m)|[\x00-\x1f\x7f\x85\u2028\u2029]")
TRACEBACK = "Traceback (most recent call last)"
FRAME = re.compile(r'^\s*File "(.+)", line (\d+), in ([\w.<>]+)$', re.M)
RAISED = re.compile(r"^[A-Za-z_][\w.]*", re.M)

# Errors whose messages may be logged. They describe the state of the service, for example a missing package. Messages
# of other errors may contain a caller's text.
OURS: tuple[type[IsosimError], ...] = (Unavailable, NotReady, Conflict)

STARTED = time.perf_counter()  # roughly the start of the process, because a server imports this module early

# Facts added to every line logged in this context: the ids of the request, the job and the trace.
about: ContextVar[Facts] = ContextVar("about", default=MappingProxyType({}))

log = logging.getLogger("isosim")


def as_json(at: float, level: str, logger: str, message: str, facts: Facts) -> bytes:
    """A log line as JSON. `at`: seconds since 1970, written in UTC. Values without a JSON type become strings."""
    when = datetime.fromtimestamp(at, UTC)
    line = {"time": when, "level": level, "logger": logger, "message": message, **facts}
    options = orjson.OPT_UTC_Z | orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS
    try:
        return orjson.dumps(line, default=str, option=options)
    except (TypeError, UnicodeError, RecursionError):  # a string is not valid Unicode, or str() of a value fails
        plain = {"time": when, "level": level, "logger": logger, "message": "a log line could not be written as JSON"}
        return orjson.dumps(plain, option=options)


def as_text(at: float, level: str, logger: str, message: str, facts: Facts) -> bytes:
    """A log line as text: `12:00:00 INFO    isosim: ready  seconds=1.7`. A stack follows below, one frame per line."""
    when = datetime.fromtimestamp(at).astimezone().strftime("%H:%M:%S")
    stack = facts.get("stack")
    rest = "".join(f"  {key}={one_line(str(value))}" for key, value in facts.items() if key != "stack")
    below = "".join(f"\n    {one_line(str(frame))}" for frame in stack) if isinstance(stack, list) else ""
    return f"{when} {level.upper():<7} {logger}: {one_line(message)}{rest}{below}\n".encode(errors="replace")


def one_line(text: str) -> str:
    """Removes colour codes. Puts a space in place of each character that would break the line or move the cursor."""
    return CONTROL.sub(lambda match: "" if match[1] else " ", text).strip()


class LineFormatter(logging.Formatter):
    """Formats records as lines. `log.info(…, extra={"facts": {…}})` adds facts to one record."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        if form == "auto":
            form = "text" if sys.stderr is not None and sys.stderr.isatty() else "json"
        self.render: Render = as_text if form == "text" else as_json

    def format(self, record: logging.LogRecord) -> str:
        return self.line(record).decode().removesuffix("\n")

    def line(self, record: logging.LogRecord) -> bytes:
        at, level = record.created, record.levelname.lower()
        try:
            message, stack = without_words(record.getMessage())
            if record.name == "asyncio":  # the other lines may quote an exception, with a caller's text
                message = message.partition("\n")[0]
            facts = {**about.get(), **getattr(record, "facts", {}), **stack}
            if record.exc_info and record.exc_info[1] is not None:
                facts |= told(record.exc_info[1])
            return self.render(at, level, NAMES.get(record.name, record.name), one_line(message)[:MESSAGE], facts)
        except Exception as error:  # noqa: BLE001 - logging's own error handler would print the arguments
            facts = {"error": type(error).__name__, "from": f"{record.pathname}:{record.lineno}"}
            return self.render(at, "error", "isosim", "a log record could not be formatted", facts)


class LineQueue(logging.Handler):
    """Writes lines in a thread; counts and drops lines that do not fit into the queue.

    Formats each record in the thread that logs it: only there, `about` contains the ids of the request.
    """

    def __init__(self, formatter: LineFormatter, fd: int = STDERR, capacity: int = CAPACITY) -> None:
        super().__init__()
        self.formatter: LineFormatter = formatter
        self.lines: queue.SimpleQueue[bytes | threading.Event] = queue.SimpleQueue()
        self.fd, self.capacity = fd, capacity
        self.dropped = 0
        threading.Thread(target=self._write, name="log-writer", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        self.enqueue(self.formatter.line(record))

    def line(self, level: str, logger: str, message: str, facts: Facts) -> None:
        """Writes a line without a logging.LogRecord. With a record, it takes three times as long."""
        self.enqueue(self.formatter.render(time.time(), level, logger, message, {**about.get(), **facts}))

    def enqueue(self, line: bytes) -> None:
        if self.lines.qsize() < self.capacity:
            self.lines.put(line)
        else:
            self.dropped += 1

    def flush(self, seconds: float = 1.0) -> None:
        """Waits until the lines before this call are written, for at most `seconds`."""
        written = threading.Event()
        self.lines.put(written)
        written.wait(seconds)

    def _write(self) -> None:
        while True:
            first = self.lines.get()
            if not isinstance(first, threading.Event):
                time.sleep(PAUSE)
            piece = b""
            for item in self._waiting(first):
                # A pipe may mix the parts of a write of more than PIPE_BUF bytes with lines of other processes.
                if isinstance(item, threading.Event) or len(piece) + len(item) > select.PIPE_BUF:
                    self._send(piece)
                    piece = b""
                if isinstance(item, threading.Event):
                    item.set()
                else:
                    piece += item
            self._send(piece)

    def _waiting(self, first: bytes | threading.Event) -> Iterator[bytes | threading.Event]:
        yield first
        while not self.lines.empty():
            yield self.lines.get()

    def _send(self, piece: bytes) -> None:
        view = memoryview(piece)
        while view:
            try:
                view = view[os.write(self.fd, view) :]
            except BlockingIOError:  # fd's buffer is full, and another process has made fd non-blocking
                select.select([], [self.fd], [])
            except OSError:  # the reader has left
                self.dropped += piece.count(b"\n")
                return


_handler: logging.Handler | None = None  # one per process, because a process has one stderr and one root logger


def configure(level: str, form: Form, *, queued: bool = False) -> None:
    """Configures all logging of this process. If `queued`, a thread writes the lines and callers need not wait."""
    global _handler  # noqa: PLW0603
    formatter = LineFormatter(form)
    _handler = LineQueue(formatter) if queued else direct(formatter)
    logging.raiseExceptions = False  # or a handler that fails would print the record's arguments
    logging.basicConfig(handlers=[_handler], level=logging.WARNING, force=True)
    for name in OUR_LOGGERS:
        logging.getLogger(name).setLevel(level.upper())
    logging.captureWarnings(True)
    sys.excepthook = lambda _, error, __: uncaught(error)
    sys.unraisablehook = lambda args: uncaught(args.exc_value)
    threading.excepthook = lambda args: uncaught(args.exc_value)


def direct(formatter: LineFormatter) -> logging.Handler:
    """Writes lines at once, for a process that may wait for the reader of its log."""
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    return handler


def line_queue() -> LineQueue | None:
    """The queue that `configure` made; None if it made none."""
    return _handler if isinstance(_handler, LineQueue) else None


def structured() -> bool:
    """Whether this process logs JSON."""
    formatter = None if _handler is None else _handler.formatter
    return isinstance(formatter, LineFormatter) and formatter.render is as_json


def flush() -> None:
    """Writes queued lines; call it before the process ends without Python's normal shutdown."""
    if _handler is not None:
        _handler.flush()


def uncaught(error: BaseException | None) -> None:
    """Logs an unhandled exception without its message, because the message may contain a caller's text."""
    if not isinstance(error, KeyboardInterrupt | SystemExit):
        log.critical("an exception was not handled", exc_info=error)


def name(kind: type[BaseException]) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def summary(error: BaseException) -> str:
    """The type of an error, with the message for errors of the operating system and of the types OURS. Other messages
    may contain a caller's text."""
    words = ""
    if isinstance(error, OSError) and isinstance(error.strerror, str) and isinstance(error.errno, int):
        words = error.strerror
    elif isinstance(error, OURS):
        words = str(error)
    return name(type(error)) + (f": {words}" if words else "")


def frames(trace: TracebackType | None) -> list[str]:
    """The frames of a stack as `file:line function`, the innermost last."""
    stack = [f"{frame.f_code.co_filename}:{line} {frame.f_code.co_name}" for frame, line in traceback.walk_tb(trace)]
    return stack[-FRAMES:]


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yields the exceptions that caused `error`, preceded it or are grouped in it, each once."""
    seen = {id(error)}
    waiting = [error]
    while waiting:
        one = waiting.pop(0)
        behind = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
        inner = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        for other in (behind, *inner):
            if other is not None and id(other) not in seen:
                seen.add(id(other))
                waiting.append(other)
                yield other


def told(error: BaseException) -> dict[str, object]:
    """The facts that a log line gives about an exception."""
    facts: dict[str, object] = {"error": summary(error), "stack": frames(error.__traceback__)}
    behind = [f"{summary(one)} at {(frames(one.__traceback__) or ['?'])[-1]}" for one in causes(error)]
    if behind:
        facts["caused_by"] = behind
    return facts


def without_words(message: str) -> tuple[str, dict[str, object]]:
    """Removes tracebacks from a library's message. Returns the text before the first traceback, and facts of the last
    traceback: the exception's type and the stack."""
    before, marker, _ = message.partition(TRACEBACK)
    if not marker:
        return message, {}
    last = message.rpartition(TRACEBACK)[2].partition("\n")[2]
    raised = RAISED.search(last)  # the first line that is not indented: the exception's type and message
    found = FRAME.findall(last[: raised.start()] if raised else last)
    stack = [f"{file}:{line} {function}" for file, line, function in found]
    facts: dict[str, object] = {"error": raised[0] if raised else "Exception", "stack": stack[-FRAMES:]}
    return before.strip().rstrip(":") or "an exception was not handled", facts
