"""One event, one line: JSON for machines, words for a terminal."""

import logging
import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType

import orjson

from service.logs.exceptions import told, without_words

Facts = Mapping[str, object]
Render = Callable[[float, str, str, str, Facts], bytes]

MESSAGE = 2000  # characters of a message; a line stays within what a pipe takes in one piece
CONTROL = re.compile(r"(\x1b\[[0-9;]*m)|[\x00-\x1f\x7f\x85\u2028\u2029]")

# What every line written meanwhile says beside its own: the request's id, the job's, the trace's.
about: ContextVar[Facts] = ContextVar("about", default=MappingProxyType({}))


def as_json(at: float, level: str, logger: str, message: str, facts: Facts) -> bytes:
    """`at`: s since the epoch. Times are RFC 3339 in UTC; what JSON does not know becomes a string."""
    when = datetime.fromtimestamp(at, UTC)
    line = {"time": when, "level": level, "logger": logger, "message": message, **facts}
    options = orjson.OPT_UTC_Z | orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS
    try:
        return orjson.dumps(line, default=str, option=options)
    except (TypeError, UnicodeError, RecursionError):  # half of a surrogate pair, or a value that will not be a string
        plain = {"time": when, "level": level, "logger": logger, "message": "a line could not be written"}
        return orjson.dumps(plain, option=options)


def as_text(at: float, level: str, logger: str, message: str, facts: Facts) -> bytes:
    """`12:00:00 INFO    isosim: ready  seconds=1.7`; a stack below it, a frame a line."""
    when = datetime.fromtimestamp(at).astimezone().strftime("%H:%M:%S")
    stack = facts.get("stack")
    rest = "".join(f"  {key}={one_line(str(value))}" for key, value in facts.items() if key != "stack")
    below = "".join(f"\n    {one_line(str(frame))}" for frame in stack) if isinstance(stack, list) else ""
    return f"{when} {level.upper():<7} {logger}: {one_line(message)}{rest}{below}\n".encode(errors="replace")


def one_line(text: str) -> str:
    """Colours go, and what would begin another line or move the cursor is a space."""
    return CONTROL.sub(lambda match: "" if match[1] else " ", text).strip()


class LineHandler(logging.Handler):
    """Logging's records as lines. Rendered by whoever logs, so that a line knows its request."""

    def __init__(self, render: Render, write: Callable[[bytes], None]) -> None:
        super().__init__()
        self.render, self.write = render, write

    def emit(self, record: logging.LogRecord) -> None:
        try:
            logger = LOGGERS.get(record.name, record.name)
            line = self.render(record.created, record.levelname.lower(), logger, *said(record))
        except Exception as error:  # noqa: BLE001 - logging's own answer prints the arguments
            facts = {"error": type(error).__name__, "from": f"{record.pathname}:{record.lineno}"}
            line = self.render(record.created, "error", "isosim", "a line could not be made", facts)
        self.write(line)


LOGGERS = {"uvicorn.error": "uvicorn"}  # where uvicorn says everything, errors or not


def said(record: logging.LogRecord) -> tuple[str, Facts]:
    """A record's message and facts; `extra={"facts": {…}}` gives facts of its own."""
    facts: dict[str, object] = {**about.get(), **getattr(record, "facts", {})}
    message, found = without_words(record.getMessage())
    if record.name == "asyncio":  # the lines below the first are the repr of a task, with its exception's words
        message = message.partition("\n")[0]
    facts |= found
    if record.exc_info and record.exc_info[1] is not None:
        facts |= told(record.exc_info[1])
    return one_line(message)[:MESSAGE], facts
