"""What may be told of an exception: its type and where it was raised. Its words may quote a caller's text.

pydantic prints the input it refused, a KeyError its key, a UnicodeError the string, `int()` what it was given.
"""

import re
import traceback
from collections.abc import Iterator
from types import TracebackType

from service.core.errors import Conflict, IsosimError, NotReady, Unavailable

FRAMES = 40  # the innermost are told; a recursion has a thousand
# Ours whose words speak of the store, of jobs and of parts that are away; others quote what a caller sent.
OURS: tuple[type[IsosimError], ...] = (Unavailable, NotReady, Conflict)
FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>[\w.<>]+)')
RAISED = re.compile(r"[A-Za-z_][\w.]*")
TRACEBACK = "Traceback (most recent call last)"


def name(kind: type[BaseException]) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def summary(error: BaseException) -> str:
    """The type, and words only where they are the operating system's or ours and quote nobody."""
    words = ""
    if isinstance(error, OSError) and isinstance(error.strerror, str) and isinstance(error.errno, int):
        words = error.strerror
    elif isinstance(error, OURS):
        words = str(error)
    return name(type(error)) + (f": {words}" if words else "")


def frames(trace: TracebackType | None) -> list[str]:
    """`file:line function`, the innermost last."""
    found = [f"{frame.f_code.co_filename}:{line} {frame.f_code.co_name}" for frame, line in traceback.walk_tb(trace)]
    return found[-FRAMES:]


def causes(error: BaseException) -> Iterator[BaseException]:
    """What it was raised from, or while handling, or stands for as a group; each once."""
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
    """The facts of a line about an exception."""
    facts: dict[str, object] = {"error": summary(error), "stack": frames(error.__traceback__)}
    behind = [f"{summary(one)} at {(frames(one.__traceback__) or ['?'])[-1]}" for one in causes(error)]
    if behind:
        facts["caused_by"] = behind
    return facts


def without_words(message: str) -> tuple[str, dict[str, object]]:
    """A message some library wrote a traceback into: what stands before it, and what may be told of the last one."""
    before, found, _ = message.partition(TRACEBACK)
    if not found:
        return message, {}
    stack: list[str] = []
    raised = None
    for line in message.rpartition(TRACEBACK)[2].splitlines()[1:]:
        if not line.startswith(" "):  # below the frames, at the margin: the exception, then its words
            raised = RAISED.match(line)
            break
        if frame := FRAME.fullmatch(line):
            stack.append(f"{frame['file']}:{frame['line']} {frame['function']}")
    facts: dict[str, object] = {"error": raised[0] if raised else "Exception", "stack": stack[-FRAMES:]}
    return before.strip().rstrip(":") or "an exception was not handled", facts
