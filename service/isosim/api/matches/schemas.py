"""Bodies and answers of matches."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field, Tag

from isosim.api.bodies import FIRST_FAULT, Number, Own, Seed, Texts, example
from isosim.api.calibration.schemas import JobAccepted
from isosim_client import Match

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


class Matches(BaseModel):
    matches: list[Match]


Chosen = Annotated[
    bool,
    Field(
        description="true: you picked this pair because of what it says, for example in the result. It then follows "
        "its label, and counts for no estimate and no order of other pairs, until it is judged without `chosen`"
    ),
]


class PairLabel(Own):
    pair: Number
    label: Literal[0, 1] | None = Field(description="1: the texts mean the same; 0: they do not; null: not judged")
    chosen: Chosen = False


class TextLabel(Own):
    """A judgement on a pair that is named by its texts."""

    a: str
    b: str
    label: Literal[0, 1]
    chosen: Chosen = False


class PairLabels(Own):
    model_config = example({"labels": [{"pair": 17, "label": 1}, {"pair": 3, "label": 0}]})

    labels: Annotated[
        list[Annotated[PairLabel, Tag("(pair)")] | Annotated[TextLabel, Tag("(texts)")]],
        FIRST_FAULT,
        Field(max_length=5000),  # with three names each, about as many as a JSON body may have (MOST_NAMES)
    ]
