"""Posted text on its way to disk: decoded, checked and counted as it streams in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import orjson
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from service.adapters.job_store import Spool
from service.api.schemas import CalibrateRequest
from service.core.errors import EmptyInput, InvalidInput

Format = Literal["text", "ndjson"]

MIN_AUTO = 200  # distinct sentences (DESIGN section 4)
MIN_EXPLICIT_FLOW = 500
FEW = 3000  # below it a flow's fit is unsteady (QUALITY section 4)


@dataclass(frozen=True)
class Limits:
    sentences: int
    characters: int  # a sentence


class Intake:
    """Feeds sentences to a spool. Not for several threads at once."""

    def __init__(self, spool: Spool, limits: Limits, form: Format = "text") -> None:
        self.spool, self.limits = spool, limits
        self.parse: Callable[[bytes, int], str] = parse_text if form == "text" else parse_ndjson
        self.lines = 0
        self.sentences = 0
        self._rest = b""
        self._seen: set[str] = set()  # until there are enough to know that there are enough

    @property
    def distinct(self) -> int:
        """Distinct sentences, counted up to the number from which on it no longer matters."""
        return len(self._seen)

    def feed(self, chunk: bytes) -> None:
        """Raises InvalidInput, naming the line."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > 8 * self.limits.characters + 1024:
            raise InvalidInput(f"line {self.lines + len(lines) + 1} is longer than {self.limits.characters} characters")
        self._take(lines)

    def close(self) -> None:
        if self._rest:
            self._take([self._rest])
            self._rest = b""
        if not self.sentences:
            raise EmptyInput("texts: no sentence was posted")

    def _take(self, lines: Sequence[bytes]) -> None:
        texts = []
        for line in lines:
            self.lines += 1
            if line.strip():
                texts.append(self.parse(line, self.lines))
        self.add(texts, lambda index: f"line {self.lines - len(lines) + index + 1}")

    def add(self, texts: Sequence[str], where: Callable[[int], str]) -> None:
        kept = []
        for index, text in enumerate(texts):
            if len(text) > self.limits.characters:
                limit = self.limits.characters
                raise InvalidInput(f"{where(index)} has {len(text)} characters, at most {limit} are taken")
            if text.strip():
                kept.append(text.strip())
        self.sentences += len(kept)
        if self.sentences > self.limits.sentences:
            raise InvalidInput(f"more than {self.limits.sentences} sentences were posted")
        if len(self._seen) < FEW:
            self._seen.update(kept)
        try:
            self.spool.extend(kept)
        except (TypeError, UnicodeError):
            raise InvalidInput("a sentence holds a lone surrogate, which is no Unicode text") from None

    def check_enough(self, method: str) -> list[str]:
        """Notices for the job.

        Raises:
            InvalidInput: too few distinct sentences; the message says how many are needed.
        """
        flow = method.startswith("flow")
        needed = MIN_EXPLICIT_FLOW if flow else MIN_AUTO
        if self.distinct < needed:
            raise InvalidInput(
                f"texts: {self.distinct} distinct sentences were posted ({self.sentences} in all), "
                f"method {method!r} needs at least {needed}"
            )
        if flow and self.distinct < FEW:
            return [f"a flow fitted on fewer than {FEW} distinct sentences is unsteady; here are {self.distinct}"]
        return []


def parse_text(line: bytes, number: int) -> str:
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"line {number} is not UTF-8 (byte {error.start + 1})") from None


def parse_ndjson(line: bytes, number: int) -> str:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"line {number} is not JSON: {error}") from None
    text = value.get("text") if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise InvalidInput(f'line {number}: expected "a sentence" or {{"text": "a sentence"}}')
    return text


def parse_json(body: bytes) -> CalibrateRequest:
    """Raises RequestValidationError, as FastAPI would for a body it reads itself."""
    try:
        return CalibrateRequest.model_validate_json(body)
    except ValidationError as error:
        errors = [{**found, "loc": ("body", *found["loc"])} for found in error.errors()]
        raise RequestValidationError(errors) from None
