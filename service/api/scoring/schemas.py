"""Bodies of requests, and of answers for the documentation: scoring. Our own bodies refuse unknown fields."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Discriminator, FailFast, Field, Tag, WithJsonSchema

from service.api.bodies import (
    Compatible,
    DomainField,
    Own,
    SentencePairs,
    Sentences,
    TargetFacts,
    all_numbers,
    all_texts,
    example,
)
from service.core.scoring.distances import METRICS, Metric

ThresholdField = Annotated[
    str | None,
    Field(
        description="name of a saved threshold (PUT /domains/{domain}/thresholds/{name}); adds `match` to the answer"
    ),
]
OF_ENCODER = "digest of the encoder that made the vectors, as answers name it; where another one answers: 409"


class PairsRequest(Own):
    """Sentence pairs, scored in one domain."""

    model_config = example(
        {"pairs": [["A man is playing a guitar.", "Someone plays an instrument."]], "domain": "default"}
    )

    pairs: SentencePairs = Field(description="pairs of sentences, at most ISOSIM_MAX_PAIRS")
    domain: DomainField = "default"
    threshold: ThresholdField = None
    detail: bool = Field(default=False, description="adds what the score rests on")


Vector = Annotated[
    Any,
    WithJsonSchema(
        {"anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "string", "contentEncoding": "base64"}]}
    ),
]


class VectorsRequest(Own):
    """Pairs of vectors that the domain's encoder has made, wherever it ran."""

    model_config = example({"vectors": [[[0.6, 0.8], [0.8, 0.6]]], "domain": "default"})

    vectors: Annotated[
        list[tuple[Vector, Vector]],
        FailFast(),
        Field(
            description="pairs, at most ISOSIM_MAX_PAIRS; a vector is a list of numbers, or base64 of little-endian "
            "float32, which takes a third of the room"
        ),
    ]
    domain: DomainField = "default"
    threshold: ThresholdField = None
    encoder: Annotated[str | None, Field(description=OF_ENCODER)] = None
    detail: bool = Field(default=False, description="adds what the score rests on")


class PercentileRequest(Own):
    """Scores that were computed elsewhere, from vectors of the domain's encoder: cosines, or a database's distances."""

    model_config = example({"cosines": [0.31, 0.87], "domain": "default"})

    cosines: Annotated[list[float] | None, all_numbers] = Field(default=None, description="-1 to 1")
    distances: Annotated[list[float] | None, all_numbers] = Field(default=None, description="in the unit of `metric`")
    metric: Metric | None = Field(default=None, description=METRICS)
    domain: DomainField = "default"
    encoder: Annotated[str | None, Field(description=OF_ENCODER)] = None


class PercentileResponse(BaseModel):
    """Columns, one entry a score, on the scale of the frozen encoder's cosines (`space=raw`)."""

    model_config = example(
        {
            "domain": "default",
            "version": 1,
            "encoder": "9f5731ee66d8356acc380ac9202a33907c693fd43cdf64c6e33538f2531314c0",
            "method": "identity",
            "cosine": [0.31, 0.87],
            "percentile": [0.9871, 0.99999993],
            "false_match_rate": [0.0129, 7e-08],
            "extrapolated": [False, True],
            "probability": None,
            "notices": [],
        }
    )

    domain: str
    version: int
    encoder: str
    method: str
    cosine: list[float] = Field(description="that the scores stand for")
    percentile: list[float] = Field(description="share of the domain's random pairs that have a lower cosine")
    false_match_rate: list[float] = Field(description="share of them that have at least this cosine")
    extrapolated: list[bool] = Field(description="as in /similarity")
    probability: list[float] | None = Field(
        description="of a match, where the domain was given labels; null unless its method is identity, without item "
        "normalization"
    )
    notices: list[str]


TruncationDirection = Annotated[
    Literal["Right", "Left", "right", "left"],
    Field(description="the end that is cut off; Hugging Face's client writes small"),
]


PromptName = Annotated[
    str | None,
    Field(description="a prompt of the encoder's checkpoint, put before each text in its own prompt's place"),
]


class TeiParameters(Compatible):
    truncate: bool | None = Field(default=None, description="false: refuse a text that is too long")
    truncation_direction: TruncationDirection = "Right"
    prompt_name: PromptName = None
    domain: DomainField = "default"


class TeiInputs(Compatible):
    source_sentence: str
    sentences: Sentences


class TeiSimilarityRequest(Compatible):
    """text-embeddings-inference's body: one sentence against many."""

    model_config = example(
        {
            "inputs": {
                "source_sentence": "A man is playing a guitar.",
                "sentences": ["Someone plays an instrument.", "Shares fell in London."],
            }
        }
    )

    inputs: TeiInputs
    parameters: TeiParameters | None = None


def which_similarity(body: Any) -> str:
    if not isinstance(body, dict):
        return "pairs"
    return "tei" if "inputs" in body else "vectors" if "vectors" in body and "pairs" not in body else "pairs"


SimilarityRequest = Annotated[
    Annotated[PairsRequest, Tag("pairs")]
    | Annotated[VectorsRequest, Tag("vectors")]
    | Annotated[TeiSimilarityRequest, Tag("tei")],
    Discriminator(which_similarity),
]


Flag = Literal["truncated", "unreadable", "out_of_domain"]


class PairFlags(BaseModel):
    """Of each text: it was cut; no token of it is known to the encoder; it is unlike the domain's own text."""

    a: list[Flag]
    b: list[Flag]


class PairNumbers(BaseModel):
    a: float
    b: float


class SimilarityDetail(BaseModel):
    """What flags and percentiles rest on, one entry a pair."""

    out_of_domain: list[PairNumbers] | None = Field(
        description="share of the domain's own sentences that are at least as odd; flagged below 0.01"
    )
    tokens: list[PairNumbers] | None = Field(description="as the encoder counted them; null where vectors were sent")
    pairs: int | None = Field(description="random pairs that percentiles rest on; null where there is no reference")


class NamedThreshold(BaseModel):
    """The saved threshold that the request has named."""

    name: str
    target: TargetFacts
    similarity: float | None = Field(
        description="pairs match from here on; null where the version cannot reach the target, and with item "
        "normalization, where percentiles decide"
    )
    version: int


class SimilarityResponse(BaseModel):
    """Columns, one entry a pair."""

    model_config = example(
        {
            "domain": "default",
            "version": 1,
            "encoder": "9f5731ee66d8356acc380ac9202a33907c693fd43cdf64c6e33538f2531314c0",
            "method": "identity",
            "cosine": [0.6674459],
            "similarity": [0.6674459],
            "percentile": [0.9999991878494056],
            "extrapolated": [True],
            "probability": None,
            "flags": [{"a": [], "b": []}],
            "notices": [],
        }
    )

    domain: str
    version: int
    encoder: str
    method: str
    cosine: list[float] = Field(description="cosine of the frozen encoder's vectors")
    similarity: list[float] = Field(description="cosine of the calibrated latents")
    percentile: list[float] | None = Field(description="share of the domain's random pairs that score lower")
    extrapolated: list[bool] | None = Field(
        description="true where fewer than 10 of the domain's random pairs lie beyond the score, and the percentile "
        "is read off a fitted curve; null where percentile is null"
    )
    probability: list[float] | None = Field(
        description="of a match, where the domain was given labels; for grades the mean grade, 0–1 of their range"
    )
    flags: list[PairFlags]
    notices: list[str]
    threshold: NamedThreshold | None = Field(default=None, description="only where one was named")
    match: list[bool] | None = Field(
        default=None,
        description="only where a threshold was named: whether the pair reaches it, never with an unreadable text; "
        "null where the version cannot reach the target, and `notices` says why (threshold_unreachable)",
    )
    detail: SimilarityDetail | None = Field(default=None, description="only where it was asked for")


class EmbedRequest(Compatible):
    """text-embeddings-inference's body, with a domain and a space."""

    model_config = example({"inputs": ["A man is playing a guitar.", "Shares fell in London."]})

    inputs: Annotated[str | list[str], all_texts]
    normalize: bool = True
    truncate: bool | None = None
    truncation_direction: TruncationDirection = "Right"
    prompt_name: PromptName = None
    dimensions: int | None = Field(default=None, ge=1, le=65_536)
    domain: DomainField = "default"
    space: Literal["calibrated", "raw"] = "calibrated"
