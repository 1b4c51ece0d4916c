"""Bodies and answers of calibrations, of labelled pairs for a version, and of jobs."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, FailFast, Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from service.adapters.encoder.brought import brought_vector, encoded
from service.adapters.encoder.store import EncoderArtifact
from service.api.bodies import Own, Sentences, example
from service.api.validation import ENCODER_PATTERN
from service.core.errors import InvalidInput
from service.core.jobs.job import METHODS, NORMALIZATIONS, PROMOTIONS, LabelledPair
from service.core.wording import place

Method = Literal[METHODS]  # type: ignore[valid-type]
Promotion = Literal[PROMOTIONS]  # type: ignore[valid-type]
Normalization = Literal[NORMALIZATIONS]  # type: ignore[valid-type]


class CalibrateOptions(Own):
    """What a calibration is asked to do; the query of a text body, part of a JSON body."""

    domain: str
    method: Method = "auto"
    promote: Promotion = Field(
        default="if_better",
        description="if_better: where its scale holds better on the new text than the champion's, by more than the "
        "error of the difference, and nothing of the answer would be lost; a domain's first version is promoted",
    )
    seed: int = Field(default=0, ge=0, le=2**31 - 1)
    normalization: Normalization = Field(
        default="none", description="item normalization: percentiles compare scores less their texts' usual scores"
    )
    encoder: str = Field(
        default="answering",
        pattern=ENCODER_PATTERN,
        description="answering; next: the one that the domain is to move to (ISOSIM_NEXT_ENCODER); or the digest of "
        "the encoder that vectors are of: where another one answers, 409",
    )
    force: bool = Field(
        default=False, description="take each line as a sentence although they look like a table's rows"
    )


def typed_label(value: Any) -> Any:
    """A label is a number; true and false are taken as 1 and 0."""
    return float(value) if isinstance(value, bool) else value


NO_VECTORS = "a text is wanted; vectors are taken for encoders whose users bring them (isosim encoder add --dimensions)"


def text_or_vector(value: Any) -> str | list[Any]:
    """A side of a labelled pair."""
    if not isinstance(value, str | list):
        raise PydanticCustomError("entry_type", "no text", {"wanted": "a text, or a vector where vectors are brought"})
    return value


LabelledSide = Annotated[
    str | list[float],
    PlainValidator(text_or_vector),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "number"}}]}),
]


class Label(NamedTuple):
    """[text, text, 0 or 1, or a grade], and a weight above 0 where pairs were not drawn with equal probability.

    Where an encoder's vectors are brought, vectors (lists of numbers, or base64 of float32) take the place of texts.
    """

    a: LabelledSide
    b: LabelledSide
    label: Annotated[float, BeforeValidator(typed_label), Field(allow_inf_nan=False)]
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0


def pairs_of(labels: Iterable[Label], artifact: EncoderArtifact | None = None) -> list[LabelledPair]:
    """Labelled texts; or labelled vectors of this encoder, in base64.

    Raises:
        InvalidInput: a side is a vector where texts are taken, or no vector of the encoder's.
    """
    brought = artifact if artifact is not None and artifact.kind == "vectors" else None
    return [
        LabelledPair(
            side_of(label.a, f"labels.{row}.0", brought),
            side_of(label.b, f"labels.{row}.1", brought),
            label.label,
            label.weight,
        )
        for row, label in enumerate(labels)
    ]


def side_of(value: str | list[float], name: str, brought: EncoderArtifact | None) -> str:
    if brought is not None:
        return encoded(brought_vector(value, place(name), brought))
    if isinstance(value, str):
        return value
    raise InvalidInput(f"{place(name)} is a vector; {NO_VECTORS}")


LabelledPairs = Annotated[
    list[Label],
    FailFast(),
    Field(
        description="[text, text, 0 or 1, or a grade] or [text, text, label, weight]: the inverse of its probability"
    ),
]


class CalibrateRequest(CalibrateOptions):
    """Sentences of a domain, 200 distinct ones at least, and labelled pairs if there are any."""

    model_config = example({"domain": "tickets", "texts": ["The printer is jammed.", "I cannot log in."]})

    texts: Sentences
    labels: LabelledPairs = Field(default=[])


class LabelsRequest(Own):
    """Labelled pairs for a version that exists; they make a new version of it."""

    model_config = example({"labels": [["Printer is jammed.", "Paper stuck in the printer.", 1]]})

    labels: LabelledPairs
    version: int | None = Field(default=None, ge=1, description="the version to start from; else the champion")
    promote: Promotion = Field(
        default="always", description="holds only while the champion is the one the labels were posted for"
    )
    seed: int = Field(default=0, ge=0, le=2**31 - 1)
    from_: int | None = Field(
        default=None,
        alias="from",
        ge=0,
        description="the version that answered when you looked; where another one answers by now, the answer is 409, "
        "unless the Idempotency-Key says that this request was accepted before",
    )


class JobAccepted(BaseModel):
    job: str
    domain: str
    status: str


class JobState(BaseModel):
    job: str
    domain: str
    encoder: str = Field(description="digest of the one that the calibration is for")
    status: Literal["queued", "running", "succeeded", "failed", "cancelled", "interrupted"]
    stage: str
    progress: float
    attempt: int
    method: str
    promote: str
    seed: int
    normalization: str
    sentences: int
    labels: int
    base: int | None = Field(description="the version that was given labels")
    created: str
    started: str | None
    finished: str | None
    version: int | None
    promoted: bool | None
    report: dict[str, Any] | None
    error: str | None
    notices: list[str]


class Jobs(BaseModel):
    jobs: list[JobState]


class Inspection(BaseModel):
    """What a posted file is, and how it would be read."""

    model_config = example(
        {
            "format": "csv",
            "encoding": "windows-1252",
            "encoding_certain": False,
            "separator": ";",
            "header": True,
            "sheet": None,
            "sheets": [],
            "columns": ["id", "question", "state"],
            "rows": [["1", "Wie öffne ich die Datei?", "open"], ["2", "Wo ist meine Rechnung?", "closed"]],
            "column": "question",
            "sentences": 2400,
            "distinct": 2390,
            "empty": 0,
            "too_long": 1,
            "too_long_rows": [2401],
            "longest": 10001,
        }
    )

    format: Literal["text", "csv", "tsv", "ndjson", "parquet", "xlsx"]
    encoding: str | None = Field(description="of the text; null where the format has none of its own")
    encoding_certain: bool = Field(description="false: a guess, which charset= overrules")
    separator: str | None = Field(description="of the cells of CSV and TSV")
    header: bool = Field(description="whether the first row names the columns; header= overrules it")
    sheet: str | None = Field(description="that is read; sheet= names another")
    sheets: list[str] = Field(description="of a workbook")
    columns: list[str] = Field(description="the first hundred")
    rows: list[list[str]] = Field(description="the first ten, cells cut to 200 characters")
    column: str = Field(description="that the counts are of: the one asked for, else the likeliest")
    sentences: int = Field(description="that a calibration would take")
    distinct: int
    empty: int = Field(description="rows without a sentence")
    too_long: int = Field(description="sentences beyond ISOSIM_MAX_CHARACTERS, which are left out")
    too_long_rows: list[int] = Field(description="the first of them, counted as a person counts")
    longest: int = Field(description="characters of the longest sentence")
