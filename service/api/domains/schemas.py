"""Bodies and answers about domains: versions, drift, thresholds, and moves to another encoder."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from service.adapters.domains.store import Start
from service.api.bodies import Own, TargetFacts, example
from service.core.scoring.advice import MOST_GALLERY, SMALLEST_FMR, Target
from service.core.scoring.distances import Metric


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
    revision: int | None = Field(
        description="counts the changes of champion, previous and thresholds; null: they cannot be read"
    )
    thresholds: dict[str, TargetFacts] = Field(description="saved targets by name; GET /domains/{domain}/thresholds")
    versions: list[VersionSummary]
    unreadable: list[str] = Field(description="what of the domain cannot be read, and why; empty where all is well")
    drift: DriftState | None = Field(description="null until the domain was asked about")


class Domains(BaseModel):
    domains: list[DomainState]
    next: str | None = Field(description="what to give as `after` for the domains that follow; null where none do")


class Origin(BaseModel):
    """Where an imported version was made."""

    domain: str
    version: int
    release: str
    imported: str


class VersionState(VersionSummary):
    domain: str
    origin: Origin | None = Field(default=None, description="of a version that was imported; else null")
    files: dict[str, str]
    report: dict[str, Any]


class ImportedVersionState(BaseModel):
    source: str = Field(description="name@version in the archive")
    domain: str
    version: int = Field(description="its number here; kept where all from there on were free")
    encoder: str = Field(description="id")
    was: str | None = Field(description="champion or previous, where it came from; it is not promoted here")
    there: bool = Field(description="the same files are a version here already; nothing was added")


class ImportState(BaseModel):
    versions: list[ImportedVersionState]
    thresholds: list[str] = Field(description="domain/name of the saved thresholds that were added")
    kept: list[str] = Field(
        description="domain/name of those that were not added: the name has another target here, or there is no room"
    )


class Threshold(BaseModel):
    """The similarity to ask for, so that pairs match as often as wanted, or are as often right as wanted."""

    domain: str
    version: int
    target: TargetFacts
    space: Literal["calibrated", "raw"]
    similarity: float
    # A list and not a tuple: other people's tools read `prefixItems` wrongly.
    interval: list[float] = Field(
        min_length=2, max_length=2, description="95 %, from a bootstrap over sentences or labelled pairs"
    )
    unit: Metric | None = Field(default=None, description="of the distance, where one was asked for")
    distance: float | None = Field(default=None, description="the threshold in this unit")
    distance_interval: list[float] | None = Field(default=None, min_length=2, max_length=2, description="95 %")
    pairs: int = Field(description="random pairs, labelled ones, or comparisons of searches that it rests on")
    extrapolated: bool = Field(
        description="beyond what was counted: a rate below 10 / pairs; for searches, more entries or rarer hits"
    )
    false_match_rate: float | None = Field(default=None, description="of pairs, at this threshold")
    recall: float | None = Field(
        default=None, description="with precision: share of the matches that the threshold lets through"
    )
    recall_interval: list[float] | None = Field(default=None, min_length=2, max_length=2, description="95 %")
    precision_interval: list[float] | None = Field(
        default=None,
        min_length=2,
        max_length=2,
        description="with precision: 95 %, of the share of matches at this similarity; wide where few labelled pairs "
        "score as high",
    )
    query_spread: float | None = Field(
        default=None,
        description="with false_hit_rate: how many times likelier than the average query one with a false hit has "
        "another; about 1 where all queries are alike, null where too few have any",
    )


class SavedThreshold(BaseModel):
    """A saved target, and the similarity that it stands for in the version that answers."""

    name: str
    target: TargetFacts
    similarity: float | None = Field(
        description="pairs match from here on; null where the version cannot reach the target, and with item "
        "normalization, where percentiles decide"
    )
    interval: list[float] | None = Field(min_length=2, max_length=2, description="95 %; null where similarity is null")
    extrapolated: bool | None = Field(description="as of GET /domains/{domain}/threshold; null: it is not reached")
    notice: str | None = Field(description="why there is no similarity")


class Thresholds(BaseModel):
    domain: str
    version: int = Field(description="that the similarities are of")
    revision: int = Field(description="of the domain: counts the changes of champion, previous and thresholds")
    thresholds: list[SavedThreshold] = Field(description="by name")


class SavedTarget(BaseModel):
    domain: str
    name: str
    target: TargetFacts
    revision: int = Field(description="of the domain, after the change")
    notice: str | None = Field(description="why the version that answers now has no similarity for it, else null")


FROM = (
    "the version that answered when you looked (`champion` of GET /domains/{domain}). Where another one answers by "
    "now, the answer is 409 and nothing changes. With it the request may be sent again: what the first one changed "
    "is answered again and not changed twice"
)
REVISION = (
    "`revision` as you saw it; where anything has changed since, the answer is 409. With it a request that is sent "
    "again late cannot repeat a change that somebody has taken back meanwhile"
)


class StartOfChange(Own):
    """What the caller saw before the change; without it the change is made whatever the domain's state is."""

    from_: int | None = Field(default=None, alias="from", ge=0, description=FROM)
    revision: int | None = Field(default=None, ge=0, description=REVISION)

    @property
    def start(self) -> Start:
        return Start(self.from_, self.revision)


class RollbackRequest(StartOfChange):
    model_config = example({"from": 2})


class TargetRequest(Own):
    """What a threshold is saved for: fmr, precision, or false_hit_rate with gallery."""

    model_config = example({"fmr": 0.01, "revision": 3})

    fmr: float | None = Field(
        default=None, description=f"false-match rate among random pairs: {SMALLEST_FMR:g} or more, less than 1"
    )
    precision: float | None = Field(
        default=None, description="share of matches among pairs like the labelled ones: more than 0, less than 1"
    )
    false_hit_rate: float | None = Field(
        default=None, description="share of searches whose best wrong match passes: 1e-06 or more, less than 1"
    )
    gallery: int | None = Field(
        default=None, ge=1, le=MOST_GALLERY, description="with false_hit_rate: the entries searched"
    )
    revision: int | None = Field(default=None, ge=0, description=REVISION)

    @property
    def target(self) -> Target:
        """Raises InvalidInput where the numbers make no target."""
        return Target(self.fmr, self.precision, self.false_hit_rate, self.gallery)


class ChampionRequest(StartOfChange):
    model_config = example({"version": 2, "from": 1})

    version: int = Field(ge=1)


class MigrationStart(Own):
    """How a domain's way to the next encoder begins."""

    model_config = example({"share": 0.0, "shadow": 0.1, "from": 1})

    from_: int | None = Field(default=None, alias="from", ge=0, description=FROM)
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


class MigrationChange(StartOfChange):
    """What is left out stays as it is."""

    model_config = example({"share": 0.1, "revision": 1})

    share: float | None = Field(default=None, ge=0, le=1)
    shadow: float | None = Field(default=None, ge=0, le=1)


class MigrationFinish(StartOfChange):
    model_config = example({"from": 1, "revision": 2})


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
