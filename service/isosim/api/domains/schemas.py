"""Bodies and answers about domains: versions, drift, thresholds, and moves to another encoder."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from isosim.api.bodies import WHOLE, Count, Number, Own, TargetFacts, example
from isosim.domains.domain import MOST_TARGETS
from isosim.scoring.advice import MOST_GALLERY, SMALLEST_FMR, Target
from isosim.scoring.distances import METRICS, Metric, Space, Unit


class VersionSummary(BaseModel):
    version: int
    method: str
    encoder: str
    created: str
    sentences: int | None
    servable: bool = Field(
        description="whether this server runs the encoder that the version was made for, and knows of no damage to the "
        "version's files"
    )
    damaged: bool = Field(
        default=False,
        description="true if this server failed to load the version's files when it last tried. It tries when a "
        "request uses the version, and when the version is promoted",
    )


class DriftState(BaseModel):
    """Recently scored texts and pairs, compared with the text that the champion was fitted to."""

    texts: int
    pairs: int
    out_of_domain: float | None = Field(
        description="share of texts flagged as `out_of_domain`; about 0.01 for the domain's own text"
    )
    distance_mean: float | None = Field(
        description="mean of log ‖z‖² over recent texts; z is a text's whitened vector. log ‖z‖² is standardized: over "
        "the domain's own text, its mean is 0 and its standard deviation is 1"
    )
    distance_spread: float | None = Field(
        description="standard deviation of the standardized log ‖z‖² over recent texts; 1 for the domain's own text"
    )
    stability_index: float | None = Field(
        description="population stability index of recent similarities, compared with the first similarities that the "
        "champion gave; above 0.25, the similarities have shifted"
    )


class DomainState(BaseModel):
    domain: str
    champion: int | None
    previous: int | None
    revision: int | None = Field(
        description="counts the changes of the domain's champion, previous version and thresholds; null if it cannot "
        "be read"
    )
    thresholds: dict[str, TargetFacts] = Field(
        description="saved targets by name; GET /domains/{domain}/thresholds gives each target's threshold"
    )
    versions: list[VersionSummary]
    unreadable: list[str] = Field(
        description="errors of the domain's record; empty if it can be read. A champion in memory answers all the same"
    )
    drift: DriftState | None = Field(description="null until texts of the domain are scored")


class HistoryEntry(BaseModel):
    """One change of a domain."""

    number: int = Field(description="counts the changes of the domain from 1, also beyond its deletion")
    time: str
    revision: int = Field(description="the domain's revision after the change")
    what: Literal[
        "version_published", "version_deleted", "promoted", "rolled_back", "threshold_saved", "threshold_deleted",
        "moved", "moved_back", "domain_deleted", "repaired",
    ]  # fmt: skip
    subject: str | None = Field(description="id of the encoder, or name of the saved threshold")
    from_: Any = Field(alias="from", description="version number, target or encoder id before the change, if any")
    to: Any = Field(description="version number, target or encoder id after the change, if any")
    by: str = Field(description="id of the API key, or `command`")
    request: str | None = Field(description="x-request-id of the request that made the change")
    job: str | None = Field(description="the calibration job that made the change")


class History(BaseModel):
    """Changes of a domain, newest first."""

    domain: str
    changes: list[HistoryEntry]
    next: int | None = Field(description="value of `before` for the next page; null on the last page")


class Domains(BaseModel):
    domains: list[DomainState]
    next: str | None = Field(description="value of `after` for the next page; null on the last page")


class Origin(BaseModel):
    """Domain, version and release that an imported version comes from."""

    domain: str
    version: int
    release: str
    imported: str


class VersionState(VersionSummary):
    domain: str
    origin: Origin | None = Field(default=None, description="where an imported version was made; else null")
    files: dict[str, str]
    report: dict[str, Any]


class ImportedVersionState(BaseModel):
    source: str = Field(description="name@version in the archive")
    domain: str
    version: int = Field(
        description="the version's number in this store: its number in the archive, if the domain has not used that "
        "number or a higher one in this store; otherwise the domain's next unused number"
    )
    encoder: str = Field(description="id of the encoder")
    was: str | None = Field(
        description="the version's alias in the exporting store: champion or previous; importing promotes nothing"
    )
    there: bool = Field(description="true if this store already has a version with the same files: nothing is added")


class ImportState(BaseModel):
    versions: list[ImportedVersionState]
    thresholds: list[str] = Field(description="domain/name of the saved thresholds that were added")
    kept: list[str] = Field(
        description="domain/name of the saved thresholds that were not added, because this store has another target "
        "under the name, or because the domain already has the maximum number of thresholds"
    )


class Threshold(BaseModel):
    """The similarity at or above which pairs match, for a wanted false-match rate, false-hit rate or precision."""

    model_config = example(
        {
            "domain": "tickets",
            "version": 1,
            "target": {"fmr": 0.01},
            "space": "calibrated",
            "similarity": 0.4251,
            "interval": [0.4183, 0.4324],
            "pairs": 19900,
            "extrapolated": False,
        }
    )

    domain: str
    version: int
    target: TargetFacts
    space: Literal["calibrated", "raw"]
    similarity: float
    # A list: a tuple becomes `prefixItems` in the OpenAPI document, which some tools misread.
    interval: list[float] = Field(
        min_length=2,
        max_length=2,
        description="95 % interval of the similarity, from a bootstrap over sentences or labelled pairs",
    )
    unit: Metric | None = Field(default=None, description="unit of the distance, if the request named one")
    distance: float | None = Field(default=None, description="the threshold as a distance in `unit`")
    distance_interval: list[float] | None = Field(
        default=None, min_length=2, max_length=2, description="95 % interval of the distance"
    )
    pairs: int = Field(
        description="number of pairs that the threshold was computed from: random pairs for fmr, labelled pairs for "
        "precision, comparisons in searches for false_hit_rate"
    )
    extrapolated: bool = Field(
        description="true if the similarity is extrapolated. With fmr: fmr or 1 - fmr is below 10 / `pairs` (with "
        "10,000 pairs: below 0.001). With false_hit_rate: false hits were counted only in searches among fewer entries "
        "than `gallery`, or only at false-match rates that are all higher or all lower than `false_match_rate`"
    )
    false_match_rate: float | None = Field(
        default=None,
        description="share of random pairs that reach this threshold. The share of false matches among the pairs found "
        "is a different number: 1 - precision",
    )
    recall: float | None = Field(
        default=None, description="with precision: share of true matches that reach the threshold"
    )
    recall_interval: list[float] | None = Field(
        default=None, min_length=2, max_length=2, description="95 % interval of the recall"
    )
    precision_interval: list[float] | None = Field(
        default=None,
        min_length=2,
        max_length=2,
        description="with precision: 95 % interval of the precision at this similarity; target.precision is the "
        "estimate. The interval is not symmetric. It is wide if few labelled pairs reach the similarity",
    )


class SavedThreshold(BaseModel):
    """A saved target, and its similarity threshold for the version that the domain uses."""

    name: str
    target: TargetFacts
    similarity: float | None = Field(
        description="lowest similarity that counts as a match; null if the version cannot reach the target"
    )
    interval: list[float] | None = Field(
        min_length=2, max_length=2, description="95 % interval of the similarity; null if the similarity is null"
    )
    extrapolated: bool | None = Field(
        description="as in GET /domains/{domain}/threshold; null if the version cannot reach the target"
    )
    notice: str | None = Field(description="why similarity is null; else null")


class Thresholds(BaseModel):
    domain: str
    version: int = Field(description="version for which the similarities are computed")
    revision: int = Field(description="counts the changes of the domain's champion, previous version and thresholds")
    thresholds: list[SavedThreshold] = Field(description="sorted by name")


class SavedTarget(BaseModel):
    domain: str
    name: str
    target: TargetFacts
    revision: int = Field(description="revision of the domain after the change")
    notice: str | None = Field(description="why the version in use cannot reach the target; else null")


REVISION = (
    "the `revision` that you saw in GET /domains/{domain}. If the domain has changed since then, the answer is 409 and "
    "nothing changes. With `revision`, the request can be retried safely: a repeated request gets the same answer and "
    "makes no further change"
)


Without = Annotated[
    list[str],
    Field(
        default_factory=list,
        max_length=MOST_TARGETS,
        description="names of saved thresholds that the version may make unreachable. Without the names, the answer is "
        "409 if the champion reaches a saved target and the version does not",
    ),
]


class Change(Own):
    """A change that may start from a revision; without it, the change is made whatever the state is."""

    revision: Number | None = Field(default=None, description=REVISION)


class Switch(Change):
    """A change of the version that answers."""

    model_config = example({"revision": 3})

    without: Without


class Targets(Own):
    """Target of a threshold: fmr, precision, or false_hit_rate with gallery."""

    fmr: float | None = Field(
        default=None, description=f"false-match rate among random pairs; at least {SMALLEST_FMR:g}, less than 1"
    )
    precision: float | None = Field(
        default=None,
        description="share of true matches among pairs that reach the threshold, measured on the labelled pairs; more "
        "than 0, less than 1",
    )
    false_hit_rate: float | None = Field(
        default=None,
        description="share of searches whose best wrong match reaches the threshold; at least 1e-06, less than 1",
    )
    gallery: Annotated[int, Field(ge=1, le=MOST_GALLERY), WHOLE] | None = Field(
        default=None, description="with false_hit_rate: number of entries searched"
    )

    @property
    def target(self) -> Target:
        """Raises InvalidInput if the numbers do not form a target."""
        return Target(self.fmr, self.precision, self.false_hit_rate, self.gallery)


class ThresholdQuery(Targets):
    model_config = ConfigDict(strict=False)  # a query has texts

    space: Space | None = Field(
        default=None,
        description="calibrated: a threshold for vectors of the model isosim/<domain>; raw: for the frozen encoder's "
        "vectors, isosim/<domain>:raw. Default: calibrated. Required with a `unit` other than `similarity`, unless the "
        "version uses the method identity, which keeps the encoder's vectors",
    )
    unit: Unit = Field(
        default="similarity",
        description=f"also returns the threshold in this unit, for an index of the vectors of `space`: {METRICS}",
    )


class TargetRequest(Targets, Change):
    """Target of a saved threshold: fmr, precision, or false_hit_rate with gallery."""

    model_config = example({"fmr": 0.01, "revision": 3})


class ChampionRequest(Switch):
    model_config = example({"version": 2, "revision": 3})

    version: Count


class MigrationSide(BaseModel):
    encoder: str = Field(description="digest of the encoder")
    id: str
    version: int | None = Field(description="the domain's champion for this encoder")


class EquatedThreshold(BaseModel):
    """A threshold of the old version, and the new version's threshold with an equal false-match rate."""

    similarity: float = Field(description="threshold of the old version")
    fmr: float
    equivalent: float = Field(description="threshold of the new version")
    interval: list[float] = Field(min_length=2, max_length=2, description="95 % interval of `equivalent`")
    extrapolated: bool = Field(
        description="true if `equivalent` is extrapolated, because one of the versions has too few random pairs: fmr "
        "or 1 - fmr is below 10 divided by their number (with 10,000 pairs: below 0.001)"
    )


class MigrationThreshold(EquatedThreshold):
    domain: str
    old: MigrationSide
    new: MigrationSide
    space: Literal["calibrated", "raw"]


class MigrationState(BaseModel):
    """The encoders between which a domain moves."""

    domain: str
    moved: bool = Field(description="whether the new encoder answers the domain's requests")
    since: str | None = Field(description="time of the move; null while the old encoder answers")
    old: MigrationSide
    new: MigrationSide
    thresholds: list[EquatedThreshold] | None = Field(
        description="thresholds of both versions at the usual false-match rates; null if this server cannot load both "
        "versions, or if one of them has no reference distribution"
    )
