"""Models of the bodies of scoring requests and of their answers. The answers' models only document the answers."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Discriminator, Field, Tag, WithJsonSchema

from isosim.api.bodies import (
    FIRST_FAULT,
    WHOLE,
    Compatible,
    DomainField,
    Numbers,
    Own,
    SentencePairs,
    Sentences,
    TargetFacts,
    TextOrTexts,
    example,
)
from isosim.scoring.distances import METRICS, Metric, Space

ThresholdField = Annotated[
    str | None,
    Field(
        description="name of a saved threshold (PUT /domains/{domain}/thresholds/{name}); adds `match` to the answer"
    ),
]
DETAIL = "adds `detail` to the answer: the numbers behind flags and percentiles"
OF_ENCODER = (
    "digest of the encoder that made the vectors (`encoder` in responses); 409 if the domain uses another encoder"
)


class PairsRequest(Own):
    """Sentence pairs, scored in one domain."""

    model_config = example(
        {"pairs": [["A man is playing a guitar.", "Someone plays an instrument."]], "domain": "default"}
    )

    pairs: SentencePairs = Field(description="pairs of sentences, at most ISOSIM_MAX_PAIRS")
    domain: DomainField = "default"
    detail: bool = Field(default=False, description=DETAIL)
    threshold: ThresholdField = None


Vector = Annotated[
    Any,
    WithJsonSchema(
        {"anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "string", "contentEncoding": "base64"}]}
    ),
]


class VectorsRequest(Own):
    """Pairs of vectors that the domain's encoder computed, here or elsewhere."""

    model_config = example({"vectors": [[[0.6, 0.8], [0.8, 0.6]]], "domain": "default"})

    vectors: Annotated[
        list[Annotated[list[Vector], Field(min_length=2, max_length=2)]],
        FIRST_FAULT,
        Field(
            description="pairs of vectors, at most ISOSIM_MAX_PAIRS; a vector is a list of numbers, or base64 of "
            "little-endian float32, which takes a third of the bytes of a list"
        ),
    ]
    domain: DomainField = "default"
    encoder: Annotated[str | None, Field(description=OF_ENCODER)] = None
    detail: bool = Field(default=False, description=DETAIL)
    threshold: ThresholdField = None


class PercentileRequest(Own):
    """Cosines or a vector database's distances, computed elsewhere from vectors of the domain's encoder."""

    model_config = example({"cosines": [0.31, 0.87], "domain": "default"})

    cosines: Numbers | None = Field(default=None, description="cosines, -1 to 1")
    distances: Numbers | None = Field(default=None, description="distances, by `metric`")
    metric: Metric | None = Field(default=None, description=METRICS)
    space: Space | None = Field(
        default=None,
        description="calibrated: the values compare vectors of the model isosim/<domain>; raw: vectors of the frozen "
        "encoder, isosim/<domain>:raw. Required unless the version uses the method identity, which keeps the encoder's "
        "vectors",
    )
    domain: DomainField = "default"
    encoder: Annotated[str | None, Field(description=OF_ENCODER)] = None


class Scored(BaseModel):
    """What made the scores of an answer."""

    domain: str
    version: int
    encoder: str
    method: str
    notices: list[str]


class PercentileResponse(Scored):
    """Lists with one entry for each cosine or distance that was sent. Percentiles and rates are those of the
    cosines in `space`."""

    model_config = example(
        {
            "domain": "default",
            "version": 1,
            "encoder": "9f5731ee66d8356acc380ac9202a33907c693fd43cdf64c6e33538f2531314c0",
            "method": "identity",
            "space": "calibrated",
            "cosine": [0.31, 0.87],
            "percentile": [0.9871, 0.99999993],
            "false_match_rate": [0.0129, 7e-08],
            "extrapolated": [False, True],
            "probability": [0.3208, 0.7311],
            "notices": [],
        }
    )

    space: Space
    cosine: list[float] = Field(description="the cosines that were sent, or that were computed from the distances")
    percentile: list[float] = Field(description="share of the domain's random pairs that have a lower cosine")
    false_match_rate: list[float] = Field(description="share of the domain's random pairs with at least this cosine")
    extrapolated: list[bool] = Field(description="as in /similarity")
    probability: list[float] | None = Field(
        description="probability of a match; null if the version has no labels, and in the raw "
        "space of a version whose method is not identity"
    )


TruncationDirection = Annotated[
    Literal["Right", "Left"],
    # Hugging Face's client sends lower case.
    BeforeValidator(lambda value: value.capitalize() if isinstance(value, str) else value),
    Field(description="end at which a long text is cut; lower case is accepted too"),
]


PromptName = Annotated[
    str | None,
    Field(description="name of a prompt of the encoder's checkpoint; its text replaces the default prompt"),
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
        return "(pairs)"
    return "(tei)" if "inputs" in body else "(vectors)" if "vectors" in body and "pairs" not in body else "(pairs)"


SimilarityRequest = Annotated[
    Annotated[PairsRequest, Tag("(pairs)")]
    | Annotated[VectorsRequest, Tag("(vectors)")]
    | Annotated[TeiSimilarityRequest, Tag("(tei)")],
    Discriminator(which_similarity),
]


Flag = Literal["truncated", "unreadable", "out_of_domain"]


class PairFlags(BaseModel):
    """Flags of each text. truncated: it was cut; unreadable: the encoder knows too few of its words, or cannot
    see where the pair's two texts differ; out_of_domain: it is unlike the domain's own text."""

    a: list[Flag]
    b: list[Flag]


class PairNumbers(BaseModel):
    a: float
    b: float


class SimilarityDetail(BaseModel):
    """Figures that explain flags and percentiles. The lists have one entry for each pair."""

    out_of_domain: list[PairNumbers] | None = Field(
        description="share of the domain's own sentences that are at least as unusual as the text. The text is flagged "
        "if the share is below 0.01. null if the version has no domain test, or if vectors were sent"
    )
    tokens: list[PairNumbers] | None = Field(description="number of tokens; null if vectors were sent")
    pairs: int | None = Field(
        description="number of random pairs that percentiles are computed from; null if the version has no random "
        "pairs: it then has no percentiles either"
    )
    numbers_differ: list[bool] | None = Field(
        description="whether each text has a number, in digits, that the other lacks; null if vectors were sent"
    )
    negation_differs: list[bool] | None = Field(
        description="whether the texts have nearly the same words, but only one has a negation; known for English, "
        "German, Russian, Arabic, Hindi and Korean. null if vectors were sent"
    )
    words: list[dict[str, float]] | None = Field(
        description="how far the pair's words move the evidence, by feature; above 0, towards a match. The probability "
        "follows from the evidence, which is minus the logit of the false-match rate. null unless the version "
        "learnt from words"
    )


class NamedThreshold(BaseModel):
    """The saved threshold that the request names."""

    name: str
    target: TargetFacts
    similarity: float | None = Field(
        description="lowest similarity that counts as a match; null if the version cannot reach the target"
    )
    probability: float | None = Field(
        description="if not null, it decides instead: the lowest probability that counts as a match, of a version that "
        "learnt from the words of labelled pairs. null for vectors"
    )
    version: int


class SimilarityResponse(Scored):
    """Lists with one entry for each pair."""

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
            "probability": [0.6412],
            "flags": [{"a": [], "b": []}],
            "notices": [],
        }
    )

    cosine: list[float] = Field(description="cosine of the frozen encoder's vectors")
    similarity: list[float] = Field(description="cosine of the calibrated latents")
    percentile: list[float] | None = Field(description="share of the domain's random pairs that score lower")
    extrapolated: list[bool] | None = Field(
        description="true if fewer than 10 of the domain's random pairs score at least as high, or fewer than 10 score "
        "lower. The percentile then comes from a fitted curve. null if percentile is null"
    )
    probability: list[float] | None = Field(
        description="probability of a match; with grades, the expected grade scaled to 0–1; null without labels"
    )
    flags: list[PairFlags]
    threshold: NamedThreshold | None = Field(default=None, description="only if the request names a threshold")
    match: list[bool] | None = Field(
        default=None,
        description="only if the request names a threshold: whether the pair reaches it; always false for an "
        "unreadable text. null if the version cannot reach the target; `notices` then contains threshold_unreachable",
    )
    detail: SimilarityDetail | None = Field(default=None, description="only if the request asks for it")


Dimensions = Annotated[int, Field(ge=1, le=65_536), WHOLE]
DIMENSIONS = "number of leading dimensions to keep, fewer than the encoder's only for raw vectors"


class EmbedRequest(Compatible):
    """text-embeddings-inference's body, plus a domain and a space."""

    model_config = example({"inputs": ["A man is playing a guitar.", "Shares fell in London."]})

    inputs: TextOrTexts
    normalize: bool = True
    truncate: bool | None = None
    truncation_direction: TruncationDirection = "Right"
    prompt_name: PromptName = None
    dimensions: Dimensions | None = Field(default=None, description=DIMENSIONS)
    domain: DomainField = "default"
    space: Literal["calibrated", "raw"] = "calibrated"
