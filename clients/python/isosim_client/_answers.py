"""The server's answers as frozen dataclasses. Fields are named as in the JSON.

A field that may be missing in an answer has a default. For example, older servers do not send all fields.
"""

from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "Checked",
    "Detail",
    "Domain",
    "Drift",
    "Job",
    "Judged",
    "Match",
    "MatchAnswer",
    "NamedThreshold",
    "PairFlags",
    "PairNumbers",
    "PairToJudge",
    "PairsToJudge",
    "Ranked",
    "SavedTarget",
    "SavedThreshold",
    "SearchOutcome",
    "Similarity",
    "Threshold",
    "Thresholds",
    "Version",
    "VersionSummary",
]


@dataclass(frozen=True, kw_only=True)
class PairFlags:
    """Flags of a pair's two texts.

    `truncated`: the text was too long and was cut. `unreadable`: the encoder knows too few words of the
    text, or cannot see where the pair's two texts differ.
    `out_of_domain`: the text is unlike the domain's own text.
    """

    a: tuple[str, ...] = ()
    b: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PairNumbers:
    """One number for each text of a pair."""

    a: float
    b: float


@dataclass(frozen=True, kw_only=True)
class Detail:
    """Figures that explain flags and percentiles. The tuples have one entry for each pair."""

    # Share (0-1) of the domain's sentences that are at least as unusual as the text.
    out_of_domain: tuple[PairNumbers, ...] | None = None
    tokens: tuple[PairNumbers, ...] = ()  # number of tokens
    # Number of random pairs from which percentiles are computed. None if the version has no percentiles.
    pairs: int | None = None
    # Whether each text has a number that the other lacks, and whether only one has a negation. None for vectors.
    numbers_differ: tuple[bool, ...] | None = None
    negation_differs: tuple[bool, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class NamedThreshold:
    """The saved threshold that the request named."""

    name: str
    target: dict[str, float] = field(default_factory=dict)
    # Pairs with at least this similarity match. None if the version cannot reach the target.
    similarity: float | None = None
    version: int  # version that scored the pairs


@dataclass(frozen=True, kw_only=True)
class Similarity:
    """Scores by one version of a domain. Each column has one entry for each pair, in the order of the request."""

    domain: str
    version: int
    encoder: str  # digest of the encoder
    method: str
    cosine: tuple[float, ...]  # cosine of the frozen encoder's vectors
    similarity: tuple[float, ...]  # cosine of the calibrated vectors
    percentile: tuple[float, ...] | None = None  # share (0-1) of the domain's random pairs that score lower
    # Probability of a match, or the expected grade scaled to 0-1; None if the version has no labels.
    probability: tuple[float, ...] | None = None
    # True if the percentile is extrapolated: fewer than 10 of the domain's random pairs score lower than this pair, or
    # fewer than 10 score at least as high.
    extrapolated: tuple[bool, ...] | None = None
    flags: tuple[PairFlags, ...] = ()
    notices: tuple[str, ...] = ()
    threshold: NamedThreshold | None = None  # None if the request names no threshold
    # Whether each pair matches. None if the request names no threshold, or if the version cannot reach the target.
    match: tuple[bool, ...] | None = None
    detail: Detail | None = None  # None if the request does not ask for details

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self.similarity)


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """A ranked text: its index in the request, and its score."""

    index: int
    score: float
    text: str | None = None  # None if the request does not ask for texts
    # Share of searches among `gallery` entries in which a wrong entry scores at least as high as this text. None if the
    # request has no `gallery`, or if the text is unreadable.
    false_hit_rate: float | None = None


class Ending:
    """What a job's status says."""

    job: str
    status: str

    @property
    def id(self) -> str:
        return self.job

    @property
    def ended(self) -> bool:
        """False if the job is queued, running or publishing. True for all other statuses, also for unknown ones."""
        return self.status not in ("queued", "running", "publishing")

    @property
    def succeeded(self) -> bool:
        return self.status == "succeeded"


@dataclass(frozen=True, kw_only=True)
class Job(Ending):
    """The state of a calibration. Times are ISO 8601, UTC.

    `calibrate` and `add_labels` return only the id, domain and status; the other fields then have their defaults.
    """

    job: str  # id
    domain: str
    status: str  # queued, running, publishing, succeeded, failed or cancelled
    stage: str = ""
    progress: float = 0.0  # share that is done, 0-1
    attempt: int = 0
    method: str = ""  # requested method; the report states the method that was chosen
    promote: str = ""
    seed: int = 0
    sentences: int = 0  # number of posted sentences, including duplicates
    labels: int = 0  # number of posted labelled pairs
    base: int | None = None  # version to which `add_labels` adds labels; None for other jobs
    encoder: str = ""  # digest of the encoder that the calibration is for
    created: str = ""
    started: str | None = None
    finished: str | None = None
    version: int | None = None  # version that the job made
    promoted: bool | None = None  # whether `version` became champion
    report: dict[str, Any] | None = None
    error: str | None = None
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MatchAnswer:
    """How many pairs of a match reach a target, and what they are worth. Intervals: 95 %, None without judged pairs."""

    similarity: float  # the threshold
    passing: int  # pairs of different texts that reach it
    matched_rows: tuple[int, ...] = ()  # rows of each file in such a pair, or, in one file, with another row's text
    judged: int = 0  # judged pairs of the match
    others_passing: int = 0  # judged pairs of different meaning that pass
    matches_missed: int = 0  # judged matches that do not pass
    precision: float | None = None
    precision_interval: tuple[float, float] | None = None
    expected_false: float | None = None  # pairs that pass and are expected to be no match
    expected_false_interval: tuple[float, float] | None = None
    recall: float | None = None  # share of the matches above the floor that pass
    recall_interval: tuple[float, float] | None = None
    more_labels: int | None = (
        None  # judgements that intervals of width 0.2 (precision) and 0.3 (recall) still need, about
    )
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Numbers of pairs of a match by similarity: each number counts the pairs between two successive edges."""

    edges: tuple[float, ...]
    compared: tuple[int, ...]
    matches: tuple[int, ...] = ()  # judged pairs that are matches
    others: tuple[int, ...] = ()  # judged pairs of different meaning


@dataclass(frozen=True, kw_only=True)
class BestPair:
    """Two rows of a match that still runs, with the first 300 characters of their texts."""

    row_a: int
    row_b: int
    a: str
    b: str


@dataclass(frozen=True, kw_only=True)
class Match(Ending):
    """The state of a match. Times are ISO 8601, UTC.

    `start_match` returns only the id, the status and `seconds`; the other fields then have their defaults. Those from
    `scale` on are None until the match has succeeded.
    """

    job: str  # id
    status: str  # queued, running, publishing, succeeded, failed or cancelled
    stage: str = ""
    progress: float = 0.0  # share that is done, 0-1
    seconds: float | None = None  # rough estimate of the run time
    created: str = ""
    started: str | None = None
    finished: str | None = None
    error: str | None = None
    notices: tuple[str, ...] = ()
    files: tuple[str, ...] = ()  # names of the files, if they were posted with names
    rows: tuple[int, ...] = ()  # rows with a text, of each file
    columns: tuple[tuple[str, ...], ...] = ()  # other columns of each file
    encoder: str = ""  # digest
    best: tuple[BestPair, ...] | None = None  # while it runs: the most similar pairs so far
    scale: dict[str, Any] | None = None  # domain, version and method; no domain if the scale belongs to the match
    distinct: tuple[int, ...] | None = None  # different texts of each file
    copies: tuple[int, ...] | None = None  # rows of each file that repeat an earlier text
    candidates: int | None = None  # number of pairs that were kept
    floor: float | None = None  # all pairs of at least this similarity were kept
    pairs: int | None = None  # number of pairs that were compared
    judged: int | None = None
    until: str | None = None  # when all of it is removed, unless it is used again
    answer: MatchAnswer | None = None
    histogram: Histogram | None = None


@dataclass(frozen=True, kw_only=True)
class PairToJudge:
    pair: int  # number of the pair
    similarity: float
    row_a: int
    row_b: int
    a: str
    b: str


@dataclass(frozen=True, kw_only=True)
class PairsToJudge:
    pairs: tuple[PairToJudge, ...]
    judged: int = 0


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Judgements on a match."""

    judged: int
    matches: int  # how many of them are matches
    unknown: int = 0  # labels whose texts are no candidates, and were left out
    until: str = ""


@dataclass(frozen=True, kw_only=True)
class SearchOutcome:
    """What searches with known answers give at a threshold. Intervals: 95 %."""

    similarity: float  # the threshold
    wrong: float  # share of the queries whose hit is wrong
    wrong_interval: tuple[float, float]
    found: float | None = None  # share of the queries with a match that find it; None if none has one
    found_interval: tuple[float, float] = (0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Searches with known answers, at each threshold."""

    domain: str
    version: int
    queries: int
    with_match: int
    gallery: int
    threshold: SearchOutcome | None = None  # the lowest with the false hit rate; None if there is none
    promised: SearchOutcome | None = None  # at the threshold that the domain gives for this rate and gallery
    queries_needed: int = 0  # with which the interval of `wrong` would be 0.01 wide
    notices: tuple[str, ...] = ()  # why nothing is promised
    table: tuple[SearchOutcome, ...] = ()  # from the strictest threshold to the loosest


@dataclass(frozen=True, kw_only=True)
class VersionSummary:
    """A version of a domain."""

    version: int
    method: str
    encoder: str  # digest of the version's encoder
    created: str = ""
    sentences: int | None = None
    servable: bool = True  # False if this server runs another encoder, or if `damaged` is True
    damaged: bool = False  # whether the version's files were damaged when this server last loaded them


@dataclass(frozen=True, kw_only=True)
class Version(VersionSummary):
    """A version's provenance and report. `files` maps the name of each file to its SHA-256."""

    domain: str
    files: dict[str, str] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)
    origin: dict[str, Any] | None = None  # of an imported version: original domain, version, release


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Compares recently scored texts and pairs with the text that the champion was fitted to."""

    texts: int = 0
    pairs: int = 0
    out_of_domain: float | None = None  # share of texts flagged as out of domain; about 0.01 for the domain's own text
    # A text's distance shows how unusual the text is for the domain. The distance is log ‖z‖², where z is the text's
    # whitened vector. Distances are standardized: the domain's own texts of the same length have mean 0 and standard
    # deviation 1.
    distance_mean: float | None = None  # mean distance of recent texts; 0 is normal
    distance_spread: float | None = None  # standard deviation of the distances of recent texts; 1 is normal
    # Population stability index (PSI). It compares recent similarities with the first similarities that the version
    # computed. Above 0.25, the similarities have shifted.
    stability_index: float | None = None


@dataclass(frozen=True, kw_only=True)
class Domain:
    """A domain: its champion and previous version, thresholds, versions and drift.

    If the domain `default` has no champion, `champion` is 0: texts of `default` are scored without a calibration.
    """

    domain: str
    champion: int | None = None
    previous: int | None = None
    # Number of changes of the domain. None if the server cannot read the domain's record.
    revision: int | None = None
    thresholds: dict[str, dict[str, float]] = field(default_factory=dict)  # saved targets by name
    versions: tuple[VersionSummary, ...] = ()
    unreadable: tuple[str, ...] = ()  # messages about files of the domain that the server cannot read
    drift: Drift | None = None  # None until texts of the domain are scored


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """The smallest similarity at which pairs match, for a requested false-match rate, false hit rate or precision."""

    domain: str
    version: int
    similarity: float
    interval: tuple[float, float] | None = None  # 95 % interval, from a bootstrap over sentences or labelled pairs
    # Number of pairs from which `similarity` was computed: random pairs for a false-match rate, labelled pairs for a
    # precision, pairs of a query and an entry for a false hit rate.
    pairs: int | None = None
    # True if `similarity` is extrapolated. For a false-match rate: fewer than 10 random pairs match, or fewer than 10
    # do not match. For a false hit rate: false hits were counted only in searches among fewer entries than `gallery`,
    # or only at higher or only at lower values of `false_match_rate`.
    extrapolated: bool = False
    target: dict[str, float] = field(default_factory=dict)  # the target that was requested
    space: str = "calibrated"
    false_match_rate: float | None = None  # share of random pairs that reach the threshold
    recall: float | None = None  # for a precision target: share of true matches that reach the threshold
    recall_interval: tuple[float, float] | None = None  # 95 % interval of `recall`
    precision_interval: tuple[float, float] | None = None  # 95 % interval of the precision at `similarity`
    unit: str | None = None  # unit of `distance`, if the request named one
    distance: float | None = None  # `similarity` converted to `unit`
    distance_interval: tuple[float, float] | None = None  # 95 % interval of `distance`


@dataclass(frozen=True, kw_only=True)
class SavedThreshold:
    """A saved target, and the similarity at which the current version reaches it."""

    name: str
    target: dict[str, float] = field(default_factory=dict)
    similarity: float | None = None  # pairs with at least this similarity match; if None, see `notice`
    interval: tuple[float, float] | None = None  # 95 % interval of `similarity`; None if `similarity` is None
    extrapolated: bool | None = None  # as `Threshold.extrapolated`; None if the version cannot reach the target
    notice: str | None = None  # the reason if `similarity` is None; otherwise None


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """The saved thresholds of a domain."""

    domain: str
    version: int  # version for which the similarities are computed
    revision: int  # number of changes of the domain's champion, previous version and thresholds
    thresholds: tuple[SavedThreshold, ...] = ()  # sorted by name


@dataclass(frozen=True, kw_only=True)
class SavedTarget:
    """A target that was saved under a name."""

    domain: str
    name: str
    target: dict[str, float] = field(default_factory=dict)
    revision: int  # the domain's revision after the change
    notice: str | None = None  # the reason if the current version cannot reach the target; otherwise None
