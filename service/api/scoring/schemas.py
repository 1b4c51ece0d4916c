"""Bodies of requests, and of answers for the documentation: scoring. Our own bodies refuse unknown fields."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Discriminator, Field, Tag

from service.api.bodies import Compatible, DomainField, Own, SentencePairs, Sentences, all_texts, example


class PairsRequest(Own):
    """Sentence pairs, scored in one domain."""

    model_config = example(
        {"pairs": [["A man is playing a guitar.", "Someone plays an instrument."]], "domain": "default"}
    )

    pairs: SentencePairs = Field(description="pairs of sentences, at most ISOSIM_MAX_PAIRS")
    domain: DomainField = "default"
    detail: bool = Field(default=False, description="adds what the score rests on")


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
    return "tei" if isinstance(body, dict) and "inputs" in body else "pairs"


SimilarityRequest = Annotated[
    Annotated[PairsRequest, Tag("pairs")] | Annotated[TeiSimilarityRequest, Tag("tei")],
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
    tokens: list[PairNumbers] = Field(description="as the encoder counted them")
    pairs: int | None = Field(description="random pairs that percentiles rest on; null where there is no reference")


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
