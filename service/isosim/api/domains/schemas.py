"""Bodies and answers about domains: versions, drift, and thresholds."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from isosim.api.bodies import WHOLE, Count, Number, Own, example
from isosim.domains.domain import MOST_TARGETS
from isosim.scoring.advice import MOST_GALLERY, SMALLEST_FMR, Target
from isosim.scoring.distances import METRICS, Space, Unit
from isosim_client import Domain


class HistoryEntry(BaseModel):
    """One change of a domain."""

    number: int = Field(description="counts the changes of the domain from 1, also beyond its deletion")
    time: str
    revision: int = Field(description="the domain's revision after the change")
    what: Literal[
        "version_published", "version_deleted", "promoted", "rolled_back", "threshold_saved", "threshold_deleted",
        "domain_deleted", "repaired",
    ]  # fmt: skip
    subject: str | None = Field(description="id of the encoder, or name of the saved threshold")
    from_: Any = Field(alias="from", description="version number or target before the change, if any")
    to: Any = Field(description="version number or target after the change, if any")
    by: str = Field(description="id of the API key, or `command`")
    request: str | None = Field(description="x-request-id of the request that made the change")
    job: str | None = Field(description="the calibration job that made the change")


class History(BaseModel):
    """Changes of a domain, newest first."""

    domain: str
    changes: list[HistoryEntry]
    next: int | None = Field(description="value of `before` for the next page; null on the last page")


class Domains(BaseModel):
    domains: list[Domain]
    next: str | None = Field(description="value of `after` for the next page; null on the last page")


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
