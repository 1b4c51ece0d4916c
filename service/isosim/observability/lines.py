"""Formats each log event as one line: JSON for machines, plain text for a terminal."""

import logging
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType, TracebackType

import orjson

from isosim.errors import Conflict, IsosimError, NotReady, Unavailable

Facts = Mapping[str, object]
Render = Callable[[float, str, str, str, Facts], bytes]

MESSAGE = 2000  # maximum number of characters of a message, so that a line fits into one atomic write to a pipe
CONTROL = re.compile(r"(\x1b\[[0-9;]*m)|[\x00-\x1f\x7f\x85\u2028\u2029]")

# Facts added to every line logged in this context: the ids of the request, the job and the trace.
about: ContextVar[Facts] = ContextVar("about", default=MappingProxyType({}))


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


class LineHandler(logging.Handler):
    """Writes log records as lines.

    Formats each record in the thread that logs it. Only in this thread, `about` contains the ids of the request.
    """

    def __init__(self, render: Render, write: Callable[[bytes], None]) -> None:
        super().__init__()
        self.render, self.write = render, write

    def emit(self, record: logging.LogRecord) -> None:
        try:
            logger = LOGGERS.get(record.name, record.name)
            line = self.render(record.created, record.levelname.lower(), logger, *said(record))
        except Exception as error:  # noqa: BLE001 - logging's own error handler would print the arguments
            facts = {"error": type(error).__name__, "from": f"{record.pathname}:{record.lineno}"}
            line = self.render(record.created, "error", "isosim", "a log record could not be formatted", facts)
        self.write(line)


LOGGERS = {"uvicorn.error": "uvicorn"}  # uvicorn logs everything under this name, not only errors


def said(record: logging.LogRecord) -> tuple[str, Facts]:
    """The message and facts of a log record. `log.info(…, extra={"facts": {…}})` adds facts to one record."""
    facts: dict[str, object] = {**about.get(), **getattr(record, "facts", {})}
    message, exception_facts = without_words(record.getMessage())
    if record.name == "asyncio":  # keeps only the first line: an exception in the others may contain a caller's text
        message = message.partition("\n")[0]
    facts |= exception_facts
    if record.exc_info and record.exc_info[1] is not None:
        facts |= told(record.exc_info[1])
    return one_line(message)[:MESSAGE], facts


FRAMES = 40  # maximum number of logged frames per stack (the innermost ones); an endless recursion has 1,000 frames
# Errors whose messages may be logged. They describe the state of the service, for example a missing package. Messages
# of other errors may contain a caller's text.
OURS: tuple[type[IsosimError], ...] = (Unavailable, NotReady, Conflict)
FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>[\w.<>]+)')
RAISED = re.compile(r"[A-Za-z_][\w.]*")
TRACEBACK = "Traceback (most recent call last)"


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
    stack: list[str] = []
    raised = None
    for line in message.rpartition(TRACEBACK)[2].splitlines()[1:]:
        if not line.startswith(" "):  # the line after the frames: the exception's type and message
            raised = RAISED.match(line)
            break
        if frame := FRAME.fullmatch(line):
            stack.append(f"{frame['file']}:{frame['line']} {frame['function']}")
    facts: dict[str, object] = {"error": raised[0] if raised else "Exception", "stack": stack[-FRAMES:]}
    return before.strip().rstrip(":") or "an exception was not handled", facts
