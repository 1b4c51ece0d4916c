"""Bodies and answers of matches."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from isosim.api.bodies import FIRST_FAULT, Number, Own, Seed, Texts, example
from isosim.api.calibration.schemas import JobAccepted, JobFacts

# A list, because many tools do not know `prefixItems`.
Interval = Annotated[list[float], Field(min_length=2, max_length=2)]

DOMAIN = (
    "domain whose scale the similarities get, name or name@3. Default: a scale that is fitted to the posted texts and "
    "belongs to this match. The name of a domain that does not exist yet keeps that scale as a new domain (scope "
    "calibrate)"
)


class MatchOptions(Own):
    """Options of a match: query parameters if the body is a form or a file, fields of the body if it is JSON."""

    domain: str | None = Field(default=None, description=DOMAIN)
    seed: Seed = 0


class MatchRequest(MatchOptions):
    """One list, to find its duplicates, or two, to find the texts of `b` that mean the same as those of `a`."""

    model_config = example(
        {
            "a": ["How do I reset my password?", "Where is my invoice?"],
            "b": ["I forgot my password.", "Can I change my address?"],
        }
    )

    a: Texts
    b: Texts | None = None


class MatchAccepted(JobAccepted):
    model_config = example(
        {"job": "7315c63f6c8e46b8b779d0de4f879e60", "domain": "default", "status": "queued", "seconds": 40.0}
    )

    seconds: float = Field(description="rough estimate of how long the job will run, on two cores of a CPU")


class Source(BaseModel):
    """Where the scale of a match comes from."""

    domain: str | None = Field(description="null: the scale was fitted to the posted texts and belongs to this match")
    version: int | None
    method: str


class Answer(BaseModel):
    """How many pairs reach a target, and what that is worth. Intervals: 95 %."""

    similarity: float = Field(description="threshold: the lowest similarity of the pairs that pass")
    passing: int = Field(description="number of pairs that pass, of different texts")
    matched_rows: list[int] = Field(
        description="number of rows of each file in a pair that passes, or, in one file, with the text of another row"
    )
    judged: int = Field(description="number of judged pairs of this match; the figures below are null without any")
    others_passing: int = Field(description="judged pairs of different meaning that pass")
    matches_missed: int = Field(description="judged matches that do not pass")
    precision: float | None = None
    precision_interval: Interval | None = None
    expected_false: float | None = Field(default=None, description="pairs that pass and are expected to be no match")
    expected_false_interval: Interval | None = None
    recall: float | None = Field(default=None, description="share of the matches above the floor that pass")
    recall_interval: Interval | None = None
    more_labels: int | None = Field(
        default=None,
        description="about how many more judgements make the intervals 0.2 (precision) and 0.3 (recall) wide",
    )
    notices: list[str]


class Histogram(BaseModel):
    """Numbers of pairs by similarity: number i of a list counts the pairs between edges i and i + 1."""

    edges: list[float]
    compared: list[int] = Field(description="pairs that were compared")
    matches: list[int] = Field(description="judged pairs that are matches")
    others: list[int] = Field(description="judged pairs of different meaning")


class BestPair(BaseModel):
    row_a: int
    row_b: int
    a: str = Field(description="the first 300 characters")
    b: str = Field(description="the first 300 characters")


class MatchState(JobFacts):
    seconds: float = Field(description="rough estimate of the run time, on two cores of a CPU")
    files: list[str] = Field(description="names of the files; empty if they were posted without names")
    rows: list[int] = Field(description="number of rows with a text, of each file")
    columns: list[list[str]] = Field(description="other columns of each file, which the result repeats")
    scale: Source | None = Field(default=None, description="null until the job has succeeded, and in lists of matches")
    distinct: list[int] | None = Field(default=None, description="number of different texts of each file")
    copies: list[int] | None = Field(default=None, description="rows of each file that repeat an earlier text")
    candidates: int | None = Field(default=None, description="number of pairs that were kept, the most similar ones")
    floor: float | None = Field(default=None, description="all pairs of at least this similarity are candidates")
    pairs: int | None = Field(default=None, description="number of pairs that were compared")
    best: list[BestPair] | None = Field(
        default=None,
        description="while the job runs: the hundred most similar pairs of the texts that are embedded so far, by the "
        "encoder's own similarity",
    )
    judged: int | None = None
    until: str | None = Field(
        default=None, description="when texts, pairs and judgements are removed, unless used again"
    )
    answer: Answer | None = Field(default=None, description="null until the job has succeeded, and in lists of matches")
    histogram: Histogram | None = Field(
        default=None, description="null until the job has succeeded, and in lists of matches"
    )


class Matches(BaseModel):
    matches: list[MatchState]


class PairToJudge(BaseModel):
    pair: int = Field(description="number of the pair, to be sent with its label")
    similarity: float
    row_a: int
    row_b: int
    a: str
    b: str


class PairsToJudge(BaseModel):
    pairs: list[PairToJudge]
    judged: int


class PairLabel(Own):
    pair: Number
    label: Literal[0, 1] | None = Field(description="1: the texts mean the same; 0: they do not; null: not judged")


class TextLabel(Own):
    """A judgement on a pair that is named by its texts."""

    a: str
    b: str
    label: Literal[0, 1]


class PairLabels(Own):
    model_config = example({"labels": [{"pair": 17, "label": 1}, {"pair": 3, "label": 0}]})

    labels: Annotated[list[PairLabel | TextLabel], FIRST_FAULT, Field(max_length=10_000)]


class Judged(BaseModel):
    judged: int
    matches: int = Field(description="how many of them are matches")
    unknown: int = Field(description="posted labels whose texts are no candidates, and were left out")
    until: str
