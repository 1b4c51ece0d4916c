"""Checks and counts posted sentences and labelled pairs while they stream in, and writes them to disk."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from isosim.api.calibration.schemas import NO_VECTORS, Label, pair_of
from isosim.api.validation import labelled_pair_fault
from isosim.encoders.store import EncoderArtifact
from isosim.errors import EmptyInput, InvalidInput, TooLarge
from isosim.jobs.job import LabelledPair
from isosim.jobs.posted import Spool
from isosim.jobs.requirements import STEADY_FLOW, LabelSummary, check_sentences, fewest_sentences
from isosim.jobs.sandbox import PLACES
from isosim.jobs.text_lines import check_decoded
from isosim.scoring.method import Method

MAX_LABELS = 100_000
# Bytes of a posted line for each character of the longest accepted text: a line may contain two texts, and JSON may
# write a character in 12 bytes (\uXXXX\uXXXX).
LONGEST_CHARACTER = 24
LABELLED = TypeAdapter(Label)
FILE_NAME = re.compile(r"\S*[\w-]\.[A-Za-z][A-Za-z0-9]{1,6}")


def stripped(pair: LabelledPair) -> LabelledPair:
    return pair._replace(a=pair.a.strip(), b=pair.b.strip())


@dataclass(frozen=True)
class Limits:
    sentences: int  # maximum number
    characters: int  # maximum number of characters per sentence
    dim: int  # dimension of the vectors; the largest one if the server runs several encoders
    size: int  # maximum number of bytes of a text body


class Lines:
    """Splits a body into lines while it streams in. Not thread-safe.

    `longest`: maximum bytes of a line.
    """

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self.lines = 0  # lines so far
        self._rest = b""

    def feed(self, chunk: bytes) -> None:
        """Takes a part of the body. Raises InvalidInput for an invalid line."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > self.longest:
            raise InvalidInput(f"line {self.lines + len(lines) + 1} is longer than {self.longest:,} bytes")
        self.take(lines)

    def take_rest(self) -> None:
        """Takes a last line without a line end."""
        rest, self._rest = self._rest, b""
        self.take([rest] if rest else [])

    def take(self, lines: Sequence[bytes]) -> None:
        raise NotImplementedError


class Intake(Lines):
    """Writes posted sentences and labelled pairs to a spool. Not thread-safe.

    Args:
        kind: what the labels mean (LABEL_KINDS).
        parse: reads a line, whose number it also gets.
    """

    def __init__(
        self,
        spool: Spool,
        limits: Limits,
        *,
        kind: str = "matches",
        parse: Callable[[bytes, int], str | LabelledPair] | None = None,
    ) -> None:
        super().__init__(LONGEST_CHARACTER * limits.characters + 1024)
        self.spool, self.limits = spool, limits
        self._enough = max(STEADY_FLOW, fewest_sentences("whitening", limits.dim))
        self.parse = parse or parse_ndjson
        self.sentences = 0
        self.labels = 0
        self._summary = LabelSummary(kind)
        self._received, self._too_long = 0, 0
        # Places of texts that are too long, such as "line 7" or a field's name; only the first PLACES are kept.
        self._places: list[str] = []
        self._seen: set[str] = set()  # distinct sentences; no more are added once there are `_enough`

    @property
    def distinct(self) -> int:
        """Number of distinct sentences; counting stops once there are enough for every method."""
        return len(self._seen)

    @property
    def _left_out(self) -> str:
        """How many texts are too long, and in which lines or fields the first of them are."""
        more = ", …" * (self._too_long > len(self._places))
        return f"{self._too_long:,} ({', '.join(self._places)}{more})"

    @property
    def _notice(self) -> str:
        return (
            f"sentences left out because they are longer than {self.limits.characters:,} characters: {self._left_out}"
        )

    def feed(self, chunk: bytes) -> None:
        """Takes a part of the body. Raises InvalidInput for an invalid line, TooLarge for a body above the limit."""
        self._received += len(chunk)
        # The middleware has checked the size too, but perhaps against the larger limit for vectors.
        if self._received > self.limits.size:
            raise TooLarge(f"the body is larger than {self.limits.size} bytes")
        super().feed(chunk)

    def close(self) -> None:
        """Raises InvalidInput or EmptyInput if there is no sentence that can be used."""
        self.take_rest()
        if self._too_long and not self.sentences:
            raise InvalidInput(f"all sentences are longer than {self.limits.characters:,} characters: {self._left_out}")
        if not self.sentences:
            raise EmptyInput("texts: no sentence was posted")

    def take(self, lines: Sequence[bytes]) -> None:
        texts: list[str] = []
        labels: list[LabelledPair] = []
        places: tuple[list[int], list[int]] = [], []
        for number, line in enumerate(lines, self.lines + 1):
            if line.strip():
                entry = self.parse(line, number)
                if isinstance(entry, str):
                    texts.append(entry)
                else:
                    labels.append(entry)
                places[not isinstance(entry, str)].append(number)
        self.lines += len(lines)
        self.add(texts, lambda index: f"line {places[0][index]}")
        self.add_labels(labels, lambda index: f"line {places[1][index]}")

    def add(self, texts: Sequence[str], where: Callable[[int], str]) -> None:
        kept = []
        for index, text in enumerate(texts):
            if len(text) > self.limits.characters:
                self._too_long += 1
                self._places += [where(index)] if len(self._places) < PLACES else []
            elif text.strip():
                check_decoded(text, where(index))
                kept.append(text.strip())
        self.sentences += len(kept)
        if self.sentences > self.limits.sentences:
            raise InvalidInput(f"more than {self.limits.sentences} sentences were posted")
        if len(self._seen) < self._enough:
            self._seen.update(kept)
        self._spool(self.spool.extend, kept)

    def add_labels(self, labels: Sequence[LabelledPair], where: Callable[[int], str]) -> None:
        for index, pair in enumerate(labels):
            at = where(index)
            for text in pair[:2]:
                self._check_length(text, at)
                check_decoded(text, at)
                if not text.strip():
                    raise EmptyInput(f"{at} has an empty sentence")
            try:
                self._summary.add(stripped(pair), at)
            except InvalidInput as error:
                raise InvalidInput(f"{at}: {error}") from None
        self.labels += len(labels)
        if self.labels > MAX_LABELS:
            raise InvalidInput(f"more than {MAX_LABELS} labelled pairs were posted")
        self._spool(self.spool.extend_labels, [stripped(pair) for pair in labels])

    def _check_length(self, text: str, where: str) -> None:
        if len(text) > self.limits.characters:
            raise InvalidInput(f"{where} has {len(text)} characters, at most {self.limits.characters} are taken")

    @staticmethod
    def _spool(extend: Callable[[Any], None], entries: Sequence[Any]) -> None:
        try:
            extend(entries)
        except (TypeError, UnicodeError):
            raise InvalidInput("a sentence holds half of a surrogate pair, which is not valid Unicode") from None

    def check_labels(self) -> None:
        """Raises InvalidInput if there are too few labelled pairs, saying how many are needed."""
        self._summary.check()

    def check_enough(self, method: str, dim: int) -> list[str]:
        """Checks that the input is enough to fit vectors of dimension `dim`, and returns notices for the job.

        Raises:
            InvalidInput: too few distinct sentences or labelled pairs; the message says how many are needed.
        """
        if self.labels:
            self.check_labels()
        only = next(iter(self._seen)) if self.distinct == 1 else ""
        if FILE_NAME.fullmatch(only):
            raise InvalidInput(
                "texts: the only sentence looks like the name of a file; curl posts the file itself with an @ before "
                "the name: --data-binary @FILE"
            )
        try:
            check_sentences(method, dim, self.distinct, sent=self.sentences)
        except InvalidInput as error:
            if not self._too_long:
                raise
            raise InvalidInput(f"{error}; {self._notice}") from None
        notices = [self._notice] if self._too_long else []
        return notices + flow_notices(method, self.distinct, "sentences")


def flow_notices(method: str, distinct: int, what: str) -> list[str]:
    if Method.parse(method).is_flow and distinct < STEADY_FLOW:
        return [f"a flow fitted to fewer than {STEADY_FLOW} distinct {what} is unstable; there are only {distinct}"]
    return []


def value_of(line: bytes, number: int, example: str) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"line {number} is not JSON: {error}; each line is one value, such as {example}") from None


def label_of(value: dict[str, Any], number: int) -> Label:
    try:
        given = [value.get("a"), value.get("b"), value["label"]]
        return LABELLED.validate_python(given + ([value["weight"]] if "weight" in value else []))
    except ValidationError as error:
        raise InvalidInput(f"line {number}: {labelled_pair_fault(error)}") from None


def parse_label(line: bytes, number: int, artifact: EncoderArtifact) -> LabelledPair:
    """A line of NDJSON that holds a labelled pair of texts; of vectors if `artifact` computes none itself."""
    example = '{"a": "…", "b": "…", "label": 1}'
    value = value_of(line, number, example)
    if not isinstance(value, dict) or "label" not in value:
        raise InvalidInput(f"line {number}: expected a labelled pair, {example}")
    return pair_of(label_of(value, number), (f"line {number}, a", f"line {number}, b"), artifact)


def parse_ndjson(line: bytes, number: int) -> str | LabelledPair:
    value = value_of(line, number, '"a sentence"')
    if isinstance(value, dict) and "label" in value:
        pair = label_of(value, number)
        if not isinstance(pair.a, str) or not isinstance(pair.b, str):
            raise InvalidInput(f"line {number}: {NO_VECTORS}")
        return LabelledPair(pair.a, pair.b, pair.label, pair.weight)
    if isinstance(value, dict) and "vector" in value and "text" not in value:
        raise InvalidInput(f"line {number}: {NO_VECTORS}")
    if isinstance(value, list):
        raise InvalidInput(f"line {number} is a JSON list; send one JSON value a line: jq -c '.[]' FILE > FILE.ndjson")
    text = value.get("text") if isinstance(value, dict) else value
    texts = [name for name, cell in value.items() if isinstance(cell, str)] if isinstance(value, dict) else []
    if text is None and texts:
        longest = max(texts, key=lambda name: len(value[name]))
        raise InvalidInput(
            f"line {number} is an object with the fields {', '.join(value)[:200]}; say which field holds the sentence, "
            f"perhaps column={longest[:80]}"
        )
    if not isinstance(text, str):
        raise InvalidInput(
            f'line {number}: expected "a sentence", {{"text": "a sentence"}} or {{"a": "…", "b": "…", "label": 1}}'
        )
    return text
