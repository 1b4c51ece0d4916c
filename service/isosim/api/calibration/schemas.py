"""Bodies and answers of calibrations, of labelled pairs for a version, and of jobs."""

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, Field, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from isosim.api.bodies import FIRST_FAULT, Count, Number, Own, Seed, Sentences, example
from isosim.jobs.job import LABEL_KINDS, METHODS, PROMOTIONS
from isosim_client import Job

Method = Literal[METHODS]  # type: ignore[valid-type]
Promotion = Literal[PROMOTIONS]  # type: ignore[valid-type]
LabelKind = Annotated[
    Literal[LABEL_KINDS],  # type: ignore[valid-type]
    Field(
        description="what the labels mean. matches: 1 for a match, 0 for no match; any other label is refused. grades: "
        "similarities within 0 to 1 or 0 to 5; the probability is then the expected grade, and no precision is known"
    ),
]


class CalibrateOptions(Own):
    """Options of a calibration: query parameters if the body is text or a file, fields of the body if it is JSON."""

    domain: str
    method: Method = "auto"
    promote: Promotion = Field(
        default="if_better",
        description="if_better: promotes the domain's first version. A later version is promoted if, on the new text, "
        "its false-match rates are significantly more accurate than the champion's. It is not promoted if it lacks a "
        "match probability that the champion has. Whatever the value, a version that makes a "
        "saved threshold unreachable is not promoted",
    )
    seed: Seed = 0
    encoder: str | None = Field(
        default=None,
        pattern="^[0-9a-f]{64}$",
        description="digest of the encoder that made the posted vectors; 409 if this server does not run it",
    )
    kind: LabelKind = "matches"


def typed_label(value: Any) -> Any:
    """A label is a number; true and false are taken as 1 and 0."""
    return float(value) if isinstance(value, bool) else value


# A JSON schema of its own, because many tools do not know `prefixItems`.
LABEL_SCHEMA: dict[str, Any] = {
    "type": "array",
    "items": {"anyOf": [{"type": "string"}, {"type": "number"}]},
    "minItems": 3,
    "maxItems": 4,
}


class Label(NamedTuple):
    """[text, text, label] or [text, text, label, weight]; the label is 0 or 1, or a grade, the weight above 0.

    The weight is 1 divided by the probability of drawing this pair.
    """

    a: str
    b: str
    label: Annotated[float, BeforeValidator(typed_label), Field(allow_inf_nan=False)]
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return LABEL_SCHEMA


LabelledPairs = Annotated[
    list[Label],
    FIRST_FAULT,
    Field(
        description="[text, text, label] or [text, text, label, weight]; label: 0 or 1, or a grade (see `kind`); "
        "weight: inverse of the probability with which the pair was drawn"
    ),
]


class CalibrateRequest(CalibrateOptions):
    """Sentences of a domain, at least 200 distinct ones, and optionally labelled pairs."""

    model_config = example({"domain": "tickets", "texts": ["The printer is jammed.", "I cannot log in."]})

    texts: Sentences
    labels: LabelledPairs = Field(default=[])


class LabelsOptions(Own):
    """Options of labels for a version: query parameters if the body is NDJSON, fields of the body if it is JSON."""

    kind: LabelKind = "matches"
    version: Count | None = Field(default=None, description="version to start from; default: the champion")
    promote: Promotion = Field(
        default="if_better",
        description="when the new version becomes champion. if_better: if its probabilities predict the labels at "
        "least as well as the champion's, or the champion has none, and the labels agree with the similarities. "
        "Whatever the value, a version is not promoted if the champion has changed since this request, or if it makes "
        "a saved threshold unreachable",
    )
    seed: Seed = 0
    revision: Number | None = Field(
        default=None,
        description="the `revision` that you saw in GET /domains/{domain}; if the domain has changed since then, the "
        "answer is 409. It is not checked if this request repeats an accepted one with the same Idempotency-Key",
    )


class LabelsRequest(LabelsOptions):
    """Labelled pairs that are added to an existing version; the result is a new version."""

    model_config = example({"labels": [["Printer is jammed.", "Paper stuck in the printer.", 1]]})

    labels: LabelledPairs


class JobAccepted(BaseModel):
    model_config = example({"job": "7315c63f6c8e46b8b779d0de4f879e60", "domain": "printers", "status": "queued"})

    job: str
    domain: str
    status: str


class Jobs(BaseModel):
    jobs: list[Job]


class Inspection(BaseModel):
    """Format and content of a posted file, and how a calibration would read it."""

    model_config = example(
        {
            "format": "csv",
            "encoding": "windows-1252",
            "encoding_certain": False,
            "separator": ";",
            "header": True,
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
    encoding: str | None = Field(description="text encoding; null for Parquet and workbooks")
    encoding_certain: bool = Field(description="false if the encoding is a guess; charset= overrides it")
    separator: str | None = Field(description="cell separator of CSV and TSV")
    header: bool = Field(description="whether the first row names the columns; header= overrides it")
    sheet: str | None = Field(default=None, description="sheet that is read; sheet= selects another")
    sheets: list[str] = Field(description="sheets of a workbook")
    columns: list[str] = Field(description="names of the first hundred columns")
    rows: list[list[str]] = Field(description="the first ten rows, cells cut to 200 characters")
    column: str = Field(description="column that the counts refer to: the requested one, else the likeliest")
    sentences: int = Field(description="number of sentences that a calibration would use")
    distinct: int
    empty: int = Field(description="number of rows without a sentence")
    too_long: int = Field(description="number of sentences longer than ISOSIM_MAX_CHARACTERS, which are left out")
    too_long_rows: list[int] = Field(description="first rows whose sentence is too long, counted from 1 as in the file")
    longest: int = Field(description="number of characters of the longest sentence")
