"""One event, one line; of an exception its type and place, never its words."""

import json
import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel

from isosim.errors import Conflict, CorruptArtifact, InvalidInput, NotFound
from isosim.observability.logs import Form, LineFormatter, about, as_text

MARKER = "a sentence nobody else may read"


class Body(BaseModel):
    count: int


def raise_pydantic() -> None:
    Body.model_validate({"count": MARKER})


def raise_caused() -> None:
    try:
        dict[str, str]()[MARKER]
    except KeyError as error:
        raise RuntimeError(MARKER) from error


def raise_group() -> None:
    raise ExceptionGroup(MARKER, [ValueError(MARKER), ExceptionGroup(MARKER, [TypeError(MARKER)])])


def raise_note() -> None:
    error = ValueError("x")
    error.add_note(MARKER)
    raise error


def raise_ours() -> None:
    raise InvalidInput(MARKER) from NotFound(MARKER)


QUOTING: dict[str, Callable[[], Any]] = {
    "ValidationError": raise_pydantic,
    "RuntimeError": raise_caused,
    "ExceptionGroup": raise_group,
    "ValueError": raise_note,
    "UnicodeEncodeError": (MARKER + "\ud800").encode,
    "JSONDecodeError": lambda: json.loads(MARKER),
    "InvalidInput": raise_ours,
}


CAUSES = {
    "RuntimeError": ["KeyError"],
    "ExceptionGroup": ["ValueError", "ExceptionGroup", "TypeError"],
    "InvalidInput": ["isosim.errors.NotFound"],
}


class Lines(logging.Handler):
    def __init__(self, lines: list[bytes]) -> None:
        super().__init__()
        self.lines, self.lined = lines, LineFormatter("json")

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.lined.line(record))


@pytest.fixture
def written() -> Iterator[list[bytes]]:
    """What the root logger's one handler writes, as JSON lines."""
    lines: list[bytes] = []
    root = logging.getLogger()
    before = root.handlers[:]
    root.handlers[:] = [Lines(lines)]
    yield lines
    root.handlers[:] = before


log = logging.getLogger("service.test")


@pytest.mark.parametrize("kind", QUOTING)
def test_an_exception_is_told_by_type_and_place_without_its_words(written: list[bytes], kind: str) -> None:
    try:
        QUOTING[kind]()
    except Exception:
        log.exception("it failed")
    (line,) = written
    found = json.loads(line)
    assert MARKER not in line.decode()
    assert kind in found["error"]
    assert any("test_lines.py" in frame for frame in found["stack"])
    assert [what.split(" at ")[0] for what in found.get("caused_by", [])] == CAUSES.get(kind, [])
    text = as_text(0.0, "error", "a", "b", found).decode()
    assert MARKER not in text
    assert "test_lines.py" in text


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FileNotFoundError(2, "No such file or directory", "/a"), "No such file or directory"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (Conflict("job 1 is running elsewhere"), "job 1 is running elsewhere"),
        (CorruptArtifact("weights do not match"), "weights do not match"),
    ],
)
def test_words_that_quote_nobody_are_told(written: list[bytes], error: Exception, words: str) -> None:
    log.error("it failed", exc_info=error)
    assert json.loads(written[0])["error"].endswith(f": {words}")


def test_a_traceback_inside_a_message_loses_its_words(written: list[bytes]) -> None:
    """uvicorn logs tracebacks as text."""
    import traceback

    for cause in (raise_pydantic, raise_caused):
        try:
            cause()
        except (ValueError, RuntimeError):
            log.error("[Job %s]: exception raised\n%s", "7", traceback.format_exc())
    first, second = (json.loads(line) for line in written)
    assert first["message"] == "[Job 7]: exception raised"
    assert "ValidationError" in first["error"]
    assert second["error"] == "RuntimeError"  # the last of several
    assert first["stack"][-1].startswith("/") and MARKER not in b"".join(written).decode()


def test_a_message_that_cannot_be_made_does_not_show_its_arguments() -> None:
    formatter = LineFormatter("json")
    wrong = formatter.line(logging.LogRecord("a", 20, __file__, 1, "%d texts", (MARKER,), None))
    odd = logging.LogRecord("a", 20, __file__, 1, "odd", (), None)
    odd.facts = {"bad": {1, 2}, "half": "\ud800"}
    assert MARKER not in wrong.decode()
    assert json.loads(wrong)["from"].startswith("/")
    assert json.loads(formatter.line(odd))["message"] == "a log line could not be written as JSON"


def test_a_line_knows_its_request_and_has_a_time_in_utc(written: list[bytes]) -> None:
    token = about.set({"request_id": "abc"})
    try:
        log.warning("so %s", "it is", extra={"facts": {"texts": 2}})
    finally:
        about.reset(token)
    found = json.loads(written[0])
    assert list(found) == ["time", "level", "logger", "message", "request_id", "texts"]
    assert (found["level"], found["message"], found["texts"]) == ("warning", "so it is", 2)
    assert found["time"].endswith("Z")
    assert abs(datetime.fromisoformat(found["time"]) - datetime.now(UTC)).total_seconds() < 60


@pytest.mark.parametrize("form", ["json", "text"])
def test_nothing_begins_a_line_of_its_own(form: Form) -> None:
    record = logging.LogRecord("a", 20, "", 0, "one\ntwo\r\x1b[31mred\x1b[0m\u2028three %s", ("four\nfive",), None)
    record.facts = {"key": "six\nseven"}
    line = LineFormatter(form).line(record)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert b"\x1b" not in line
