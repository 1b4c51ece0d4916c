"""What the server answers, as frozen dataclasses named as in its JSON.

A field with a default is one that a server may leave out.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class PairFlags:
    """Of a pair's two texts: `truncated`, `unreadable` (no token that the encoder knows), `out_of_domain`."""

    a: tuple[str, ...] = ()
    b: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PairNumbers:
    """A number for each of a pair's two texts."""

    a: float
    b: float


@dataclass(frozen=True, kw_only=True)
class Detail:
    """What flags and percentiles rest on, one entry a pair."""

    out_of_domain: tuple[PairNumbers, ...] | None = None  # share of the domain's own sentences at least as odd, 0-1
    tokens: tuple[PairNumbers, ...] = ()
    pairs: int | None = None  # random pairs that percentiles rest on; None without a reference


@dataclass(frozen=True, kw_only=True)
class NamedThreshold:
    """The saved threshold that a request named, in the version that answered."""

    name: str
    target: dict[str, float] = field(default_factory=dict)
    similarity: float | None = None  # None: the version cannot reach the target, or percentiles decide (normalization)
    version: int


@dataclass(frozen=True, kw_only=True)
class Similarity:
    """Columns, one entry a pair in the order of the request, all from one version of the domain."""

    domain: str
    version: int
    encoder: str  # its digest
    method: str
    cosine: tuple[float, ...]  # of the frozen encoder's vectors, uncalibrated
    similarity: tuple[float, ...]  # cosine of the calibrated vectors
    percentile: tuple[float, ...] | None = None  # share of the domain's random pairs that score lower, 0-1
    probability: tuple[float, ...] | None = None  # of a match; only where the domain was given labels
    extrapolated: tuple[bool, ...] | None = None  # percentiles beyond what the pairs can count; None as percentile
    flags: tuple[PairFlags, ...] = ()
    notices: tuple[str, ...] = ()
    threshold: NamedThreshold | None = None  # only where one was named
    match: tuple[bool, ...] | None = None  # whether pairs reach it; None also where the version cannot: see notices
    detail: Detail | None = None  # only where it was asked for

    def __len__(self) -> int:
        """Pairs."""
        return len(self.similarity)


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """A text's place: its index in the request, and its score; ranked ones come best first."""

    index: int
    score: float
    text: str | None = None  # only where it was asked for
    false_hit_rate: float | None = (
        None  # only with `gallery`: share of searches that a wrong match passes at this score
    )


@dataclass(frozen=True, kw_only=True)
class Job:
    """A calibration's state. Times are ISO 8601, UTC.

    What accepts a job answers with its id, domain and status alone; the rest then has its defaults.
    """

    id: str = field(metadata={"wire": "job"})
    domain: str
    status: str  # queued, running, succeeded, failed, cancelled or interrupted
    stage: str = ""
    progress: float = 0.0  # 0-1
    attempt: int = 0
    method: str = ""  # as asked for; the report has the one that was chosen
    promote: str = ""
    seed: int = 0
    normalization: str = ""
    sentences: int = 0  # as posted, duplicates included
    labels: int = 0  # labelled pairs, as posted
    base: int | None = None  # the version that was given labels
    encoder: str = ""  # digest of the encoder it is for
    created: str = ""
    started: str | None = None
    finished: str | None = None
    version: int | None = None  # that it made
    promoted: bool | None = None  # whether that version became champion
    report: dict[str, Any] | None = None
    error: str | None = None
    notices: tuple[str, ...] = ()

    @property
    def ended(self) -> bool:
        """Nothing more happens by itself. True also for a status this release does not know."""
        return self.status not in ("queued", "running")

    @property
    def succeeded(self) -> bool:
        return self.status == "succeeded"


@dataclass(frozen=True, kw_only=True)
class Jobs:
    jobs: tuple[Job, ...]


@dataclass(frozen=True, kw_only=True)
class VersionSummary:
    """A version of a domain."""

    version: int
    method: str
    encoder: str  # the digest of the encoder it was made for
    created: str = ""
    sentences: int | None = None
    servable: bool = True  # made for the server's encoder


@dataclass(frozen=True, kw_only=True)
class Version(VersionSummary):
    """A version's provenance and measured report; `files` has the SHA-256 of each."""

    domain: str
    files: dict[str, str] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)
    origin: dict[str, Any] | None = None  # of an imported version: where it was made


@dataclass(frozen=True, kw_only=True)
class Drift:
    """The texts and pairs last asked about, against those the champion was made from."""

    texts: int = 0
    pairs: int = 0
    out_of_domain: float | None = None  # share of texts flagged; 0.01 is what the domain's own text gives
    distance_mean: float | None = None  # of log ‖z‖², in standard deviations of the domain's own text
    distance_spread: float | None = None  # 1 for the domain's own text
    stability_index: float | None = None  # PSI of similarities against the first served; 0.25 is a shift


@dataclass(frozen=True, kw_only=True)
class Domain:
    """A domain and who answers for it. Champion 0 is the built-in identity of `default`."""

    domain: str
    champion: int | None = None
    previous: int | None = None
    revision: int | None = None  # counts the changes of aliases; None: an older server, or they cannot be read
    thresholds: dict[str, dict[str, float]] = field(default_factory=dict)  # saved targets by name
    versions: tuple[VersionSummary, ...] = ()
    unreadable: tuple[str, ...] = ()  # what of the domain the server cannot read, and why
    drift: Drift | None = None  # None until the domain was asked about


@dataclass(frozen=True, kw_only=True)
class Domains:
    domains: tuple[Domain, ...]


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """The similarity to ask for, so that pairs match as often as wanted, or are as often right as wanted."""

    domain: str
    version: int
    similarity: float
    interval: tuple[float, float] | None = None  # 95 %, from a bootstrap over sentences or labelled pairs
    pairs: int | None = None  # random pairs, or labelled ones, that it rests on
    extrapolated: bool = False  # the rate is smaller than the sample can count: below 10 / pairs
    target: dict[str, float] = field(default_factory=dict)  # what was asked for
    space: str = "calibrated"
    false_match_rate: float | None = None  # share of random pairs that reach the threshold
    recall: float | None = None  # with precision: share of the matches that the threshold lets through
    recall_interval: tuple[float, float] | None = None  # 95 %
    precision_interval: tuple[float, float] | None = None  # 95 %, of the share of matches at this similarity
    unit: str | None = None  # of `distance`, where a server was asked for a vector database's
    distance: float | None = None  # the threshold in this unit
    distance_interval: tuple[float, float] | None = None  # 95 %
    query_spread: float | None = None  # with false_hit_rate: 1 where all queries are alike; see the server's reference


@dataclass(frozen=True, kw_only=True)
class SavedThreshold:
    """A saved target, and the similarity that it stands for in the version that answers."""

    name: str
    target: dict[str, float] = field(default_factory=dict)
    similarity: float | None = None  # pairs match from here on; `notice` says why there is none
    interval: tuple[float, float] | None = None  # 95 %
    extrapolated: bool | None = None  # None: the target is not reached
    notice: str | None = None


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """A domain's saved thresholds, by name."""

    domain: str
    version: int  # that the similarities are of
    revision: int  # of the domain
    thresholds: tuple[SavedThreshold, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SavedTarget:
    """What was saved under a name."""

    domain: str
    name: str
    target: dict[str, float] = field(default_factory=dict)
    revision: int  # of the domain, after the change
    notice: str | None = None  # why the version that answers now has no similarity for it
