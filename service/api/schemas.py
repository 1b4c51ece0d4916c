"""Bodies of requests, and of answers for the documentation. Our own bodies refuse unknown fields."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, FailFast, Field, Tag
from pydantic_core import PydanticCustomError

from service.core.jobs import METHODS, NORMALIZATIONS, PROMOTIONS

DomainField = Annotated[str, Field(description="name, name@3, name@champion or name@previous")]
Method = Literal[METHODS]  # type: ignore[valid-type]
Promotion = Literal[PROMOTIONS]  # type: ignore[valid-type]
Normalization = Literal[NORMALIZATIONS]  # type: ignore[valid-type]


# One error is enough: pydantic would otherwise build one for each of a million wrong entries.
Sentences = Annotated[list[str], FailFast()]
SentencePairs = Annotated[list[tuple[str, str]], FailFast()]


def entries(holds: Callable[[Any], bool], name: str) -> BeforeValidator:
    """The same for a list in a union, where FailFast cannot stand."""

    def check(value: Any) -> Any:
        if isinstance(value, list):
            wrong = next((index for index, entry in enumerate(value) if not holds(entry)), None)
            if wrong is not None:
                raise PydanticCustomError("entry_type", f"Input should be {name}", {"index": wrong})
        return value

    return BeforeValidator(check)


all_texts = entries(lambda entry: isinstance(entry, str), "a valid string")


def example(*bodies: dict[str, Any]) -> ConfigDict:
    """Shown in the documentation; merged into the configuration of the base class."""
    return ConfigDict(json_schema_extra={"examples": list(bodies)})


class Own(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)  # "yes" is no boolean, "1" no number


class Compatible(BaseModel):
    """A body other services defined: unknown fields are kept, to be named in `x-isosim-ignored`."""

    model_config = ConfigDict(extra="allow", strict=True)

    def ignored(self) -> list[str]:
        names = list(self.model_extra or {})
        for name in type(self).model_fields:
            value = getattr(self, name)
            parts = value[:1] if isinstance(value, list) else [value]  # the first stands for its like
            names += [f"{name}.{inner}" for part in parts if isinstance(part, Compatible) for inner in part.ignored()]
        return names


class PairsRequest(Own):
    """Sentence pairs, scored in one domain."""

    model_config = example(
        {"pairs": [["A man is playing a guitar.", "Someone plays an instrument."]], "domain": "default"}
    )

    pairs: SentencePairs = Field(description="1 to 512 pairs of sentences")
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


class PairFlags(BaseModel):
    a: list[Literal["truncated", "out_of_domain"]]
    b: list[Literal["truncated", "out_of_domain"]]


class PairNumbers(BaseModel):
    a: float
    b: float


class SimilarityDetail(BaseModel):
    """What the flags rest on, one entry a pair."""

    out_of_domain: list[PairNumbers] | None = Field(
        description="share of the domain's own sentences that are at least as odd; flagged below 0.01"
    )
    tokens: list[PairNumbers] = Field(description="as the encoder counted them")


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
    encoder: Literal["answering", "next"] = Field(
        default="answering", description="next: the one that the domain is to move to (ISOSIM_NEXT_ENCODER)"
    )


def typed_label(value: Any) -> Any:
    """A label is a number; true and false are taken as 1 and 0."""
    return float(value) if isinstance(value, bool) else value


Label = tuple[str, str, Annotated[float, BeforeValidator(typed_label), Field(allow_inf_nan=False)]]
LabelledPairs = Annotated[list[Label], FailFast(), Field(description="[text, text, 0 or 1, or a grade]")]


class CalibrateRequest(CalibrateOptions):
    """Sentences of a domain, 200 distinct ones at least, and labelled pairs if there are any."""

    model_config = example({"domain": "tickets", "texts": ["The printer is jammed.", "I cannot log in."]})

    texts: Sentences
    labels: LabelledPairs = []


class LabelsRequest(Own):
    """Labelled pairs for a version that exists; they make a new version of it."""

    model_config = example({"labels": [["Printer is jammed.", "Paper stuck in the printer.", 1]]})

    labels: LabelledPairs
    version: int | None = Field(default=None, ge=1, description="the version to start from; else the champion")
    promote: Promotion = Field(
        default="always", description="holds only while the champion is the one the labels were posted for"
    )
    seed: int = Field(default=0, ge=0, le=2**31 - 1)


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


class VersionSummary(BaseModel):
    version: int
    method: str
    encoder: str
    created: str
    sentences: int | None
    servable: bool = Field(description="made for an encoder that this server runs")


class DriftState(BaseModel):
    """The texts and pairs last asked about, against those the champion was made from."""

    texts: int
    pairs: int
    out_of_domain: float | None = Field(description="share of texts flagged; 0.01 is what the domain's own text gives")
    distance_mean: float | None = Field(description="of log ‖z‖², in standard deviations of the domain's own text")
    distance_spread: float | None = Field(description="standard deviation; 1 for the domain's own text")
    stability_index: float | None = Field(description="PSI of similarities against the first served; 0.25 is a shift")


class DomainState(BaseModel):
    domain: str
    champion: int | None
    previous: int | None
    versions: list[VersionSummary]
    unreadable: list[str] = Field(description="what of the domain cannot be read, and why; empty where all is well")
    drift: DriftState | None = Field(description="null until the domain was asked about")


class Domains(BaseModel):
    domains: list[DomainState]
    next: str | None = Field(description="what to give as `after` for the domains that follow; null where none do")


class VersionState(VersionSummary):
    domain: str
    files: dict[str, str]
    report: dict[str, Any]


class Threshold(BaseModel):
    """The similarity to ask for, so that pairs match as often as wanted, or are as often right as wanted."""

    domain: str
    version: int
    target: dict[Literal["fmr", "precision"], float]
    space: Literal["calibrated", "raw"]
    similarity: float
    # A list and not a tuple: other people's tools read `prefixItems` wrongly.
    interval: list[float] = Field(
        min_length=2, max_length=2, description="95 %, from a bootstrap over sentences or labelled pairs"
    )
    pairs: int = Field(description="random pairs, or labelled ones, that it rests on")
    extrapolated: bool = Field(description="the rate is smaller than the sample can count: below 10 / pairs")


class ChampionRequest(Own):
    model_config = example({"version": 2})

    version: int = Field(ge=1)


class MigrationStart(Own):
    """How a domain's way to the next encoder begins."""

    model_config = example({"share": 0.0, "shadow": 0.1})

    share: float = Field(
        default=0.0, ge=0, le=1, description="of the requests for scores that the new encoder answers; 0: none"
    )
    shadow: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="of the requests that the old encoder answers, those that the new one scores as well, for the "
        "comparison alone; each costs the new encoder's computation",
    )


class MigrationChange(Own):
    """What is left out stays as it is."""

    model_config = example({"share": 0.1})

    share: float | None = Field(default=None, ge=0, le=1)
    shadow: float | None = Field(default=None, ge=0, le=1)


class MigrationSide(BaseModel):
    encoder: str = Field(description="digest")
    id: str
    version: int | None = Field(description="the champion for this encoder")


class EquatedThreshold(BaseModel):
    """Two similarities with the same false-match rate."""

    similarity: float = Field(description="of the old version")
    fmr: float
    equivalent: float = Field(description="of the new version")
    interval: list[float] = Field(min_length=2, max_length=2, description="95 %, of the new one")
    extrapolated: bool = Field(description="beyond what the pairs of either version can count")


class MigrationThreshold(EquatedThreshold):
    domain: str
    old: MigrationSide
    new: MigrationSide
    space: Literal["calibrated", "raw"]


class ShadowState(BaseModel):
    """What this process has seen of pairs that both versions have scored."""

    pairs: int
    window: int = Field(description="the last of them, which the numbers are about")
    mean_difference: float | None = Field(description="of |Δ percentile|")
    difference_95: float | None = Field(description="its 95th percentile")
    changed_sides: dict[str, float] | None = Field(
        description="false-match rate: share of pairs that are on another side of the threshold with that rate"
    )
    spearman: float | None = Field(description="rank correlation of the two similarities")


class MigrationState(BaseModel):
    """A domain's way from one encoder to another."""

    domain: str
    state: Literal["shadow", "split", "finished"]
    share: float
    shadow: float
    revision: int
    started: str
    changed: str
    old: MigrationSide
    new: MigrationSide
    thresholds: list[EquatedThreshold] | None = Field(
        description="the old version's at the usual rates; null where this server cannot load both versions"
    )
    seen: ShadowState | None = Field(description="null until this process has compared pairs")


class ConsoleEncoder(BaseModel):
    id: str
    digest: str
    dim: int


class ConsoleLimits(BaseModel):
    """Of what may be posted."""

    characters: int = Field(description="of one text")
    sentences: int = Field(description="of a calibration")
    bytes: int = Field(description="of a calibration's body")
    pairs: int = Field(description="of a scoring request")


class ConsoleFacts(BaseModel):
    """What the web page needs to know of this server."""

    version: str
    encoder: ConsoleEncoder
    keys: bool = Field(description="whether the other routes need a key")
    limits: ConsoleLimits
    fewest: dict[str, int] = Field(description="distinct sentences that each method needs")
    steady_flow: int = Field(description="distinct sentences below which a flow is unsteady")
    promotions: list[str]
    normalizations: list[str]
    domain_pattern: str


class ErrorBody(BaseModel):
    error: str
    error_type: str
    request_id: str
