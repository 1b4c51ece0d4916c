"""The server's answers as frozen dataclasses. Fields are named as in the JSON.

The classes that an `Answer` is a base of are also the server's own: it makes its answers of them, and describes them in
its OpenAPI document by these docstrings. A field that may be missing in an answer has a default.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

__all__ = [
    "BestPair",
    "Checked",
    "Detail",
    "Domain",
    "Drift",
    "Histogram",
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


Status = Literal["queued", "running", "publishing", "succeeded", "failed", "cancelled"]
Interval = tuple[float, ...]  # lower and upper end, at 95 %


class Answer:
    """Configuration for pydantic, which the server uses, and which need not be installed with the client."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {
        "use_attribute_docstrings": True,
        "json_schema_serialization_defaults_required": True,
    }


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
    # For each pair, how far each feature of its words moves the evidence (minus the logit of the false-match rate);
    # above 0, towards a match. None for vectors, and if the version did not learn from words.
    words: tuple[dict[str, float], ...] | None = None


@dataclass(frozen=True, kw_only=True)
class NamedThreshold:
    """The saved threshold that the request named."""

    name: str
    target: dict[str, float] = field(default_factory=dict)
    # Pairs with at least this similarity match. None if the version cannot reach the target.
    similarity: float | None = None
    # If not None, pairs with at least this probability match instead: the version learnt from the words of pairs.
    probability: float | None = None
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


@dataclass(frozen=True, kw_only=True)
class JobFacts(Answer):
    """What calibrations and matches have in common. Times are ISO 8601, UTC."""

    job: str
    status: Status
    stage: str = ""
    progress: float = 0.0
    """share that is done, 0-1"""
    created: str = ""
    started: str | None = None
    finished: str | None = None
    error: str | None = None
    notices: tuple[str, ...] = ()
    encoder: str = ""
    """digest of the encoder that the job is for"""

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
class Job(JobFacts):
    """The state of a calibration, or of labels that are added to a version.

    The answer to a post has only the id, the domain and the status.
    """

    domain: str
    attempt: int = 0
    method: str = ""
    """requested method; the report states the method that was chosen"""
    promote: str = ""
    seed: int = 0
    sentences: int = 0
    """number of posted sentences, including duplicates"""
    labels: int = 0
    """number of posted labelled pairs"""
    base: int | None = None
    """version to which the posted labels are added; null for other jobs"""
    version: int | None = None
    """version that the job made"""
    promoted: bool | None = None
    """whether `version` became champion"""
    report: dict[str, Any] | None = None
    """null until the job succeeds, and in lists of jobs"""


@dataclass(frozen=True, kw_only=True)
class MatchAnswer(Answer):
    """How many pairs of a match reach a target, and what that is worth. Intervals: 95 %."""

    similarity: float
    """threshold: the lowest similarity of the pairs that pass without a judgement"""
    adjusted: bool = False
    """whether `similarity` is one of the column `adjusted`: the similarity less what the words of the two texts take
    away, as the labels teach. It is then no value for the parameter `similarity`"""
    passing: int
    """number of pairs that pass, of different texts: those that reach the threshold, without those that were judged
    different, and those that were judged the same"""
    matched_rows: tuple[int, ...] = ()
    """number of rows of each file in a pair that passes, or, in one file, with the text of another row"""
    judged: int = 0
    """number of judged pairs of this match; the figures below are null without any"""
    chosen: int = 0
    """those of them that a person picked: they follow their label, and count for none of the estimates"""
    confirmed: int = 0
    """pairs that were judged the same; all of them pass"""
    confirmed_below: int = 0
    """those of them whose similarity is below the threshold"""
    left_out: int = 0
    """pairs that reach the threshold and do not pass, because they were judged different"""
    precision: float | None = None
    """share of matches among the pairs that pass; only that of the pairs without a judgement is estimated"""
    precision_interval: Interval | None = None
    expected_false: float | None = None
    """pairs that pass, are not judged, and are expected to be no match"""
    expected_false_interval: Interval | None = None
    recall: float | None = None
    """share of the matches above the floor that pass"""
    recall_interval: Interval | None = None
    more_labels: int | None = None
    """about how many more judgements make the intervals 0.2 (precision) and 0.3 (recall) wide"""
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Histogram(Answer):
    """Numbers of pairs by similarity: number i of a list counts the pairs between edges i and i + 1."""

    edges: tuple[float, ...]
    compared: tuple[int, ...]
    """pairs that were compared"""
    matches: tuple[int, ...] = ()
    """judged pairs that are matches"""
    others: tuple[int, ...] = ()
    """judged pairs of different meaning"""


@dataclass(frozen=True, kw_only=True)
class BestPair(Answer):
    """Two rows of a match that still runs, with the first 300 characters of their texts."""

    row_a: int
    row_b: int
    a: str
    b: str


@dataclass(frozen=True, kw_only=True)
class Match(JobFacts):
    """The state of a match. The answer to a post has only the id, the status and `seconds`.

    The fields from `scale` on are null until the match has succeeded; in lists of matches all but `judged` and `until`
    are.
    """

    seconds: float | None = None
    """rough estimate of the run time, on two cores of a CPU"""
    files: tuple[str, ...] = ()
    """names of the files; empty if they were posted without names"""
    rows: tuple[int, ...] = ()
    """number of rows with a text, of each file"""
    columns: tuple[tuple[str, ...], ...] = ()
    """other columns of each file, which the result repeats"""
    scale: dict[str, Any] | None = None
    """domain, version and method; no domain if the scale was fitted to the posted texts and belongs to this match"""
    distinct: tuple[int, ...] | None = None
    """number of different texts of each file"""
    copies: tuple[int, ...] | None = None
    """rows of each file that repeat an earlier text"""
    candidates: int | None = None
    """number of pairs that were kept, the most similar ones"""
    floor: float | None = None
    """all pairs of at least this similarity are candidates"""
    pairs: int | None = None
    """number of pairs that were compared"""
    best: tuple[BestPair, ...] | None = None
    """while the job runs: the most similar pairs of the texts that are embedded so far, by the encoder's own
    similarity"""
    judged: int | None = None
    until: str | None = None
    """when texts, pairs and judgements are removed, unless used again"""
    answer: MatchAnswer | None = None
    histogram: Histogram | None = None


@dataclass(frozen=True, kw_only=True)
class PairToJudge(Answer):
    pair: int
    """number of the pair, to be sent with its label"""
    similarity: float
    row_a: int
    row_b: int
    a: str
    b: str


@dataclass(frozen=True, kw_only=True)
class PairsToJudge(Answer):
    pairs: tuple[PairToJudge, ...]
    judged: int = 0


@dataclass(frozen=True, kw_only=True)
class Judged(Answer):
    """Judgements on a match."""

    judged: int
    chosen: int = 0
    """how many of them a person picked"""
    matches: int
    """how many of them are matches"""
    unknown: int = 0
    """posted labels whose texts are no candidates, and were left out"""
    until: str = ""


@dataclass(frozen=True, kw_only=True)
class SearchOutcome(Answer):
    """What searches with known answers give at a threshold. Intervals: 95 %."""

    similarity: float
    """the threshold"""
    wrong: float
    """share of the queries whose hit is wrong"""
    wrong_interval: Interval
    found: float | None = None
    """share of the queries with a match that find it; null: none has one"""
    found_interval: Interval = (0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class Checked(Answer):
    """Searches with known answers, at each threshold."""

    domain: str
    version: int
    queries: int
    with_match: int
    gallery: int
    threshold: SearchOutcome | None = None
    """the lowest threshold with this false hit rate, if there is one"""
    promised: SearchOutcome | None = None
    """what the threshold gives that GET /domains/{domain}/threshold names for this rate and gallery"""
    queries_needed: int = 0
    """number of queries with which the interval of `wrong` would be 0.01 wide"""
    notices: tuple[str, ...] = ()
    """why nothing is promised"""
    table: tuple[SearchOutcome, ...] = ()
    """from the strictest threshold to the loosest"""


@dataclass(frozen=True, kw_only=True)
class VersionSummary(Answer):
    """A version of a domain."""

    version: int
    method: str
    encoder: str
    """digest of the version's encoder"""
    created: str = ""
    sentences: int | None = None
    servable: bool = True
    """whether this server runs the encoder that the version was made for, and knows of no damage to its files"""
    damaged: bool = False
    """whether this server failed to load the version's files when it last tried: when a request used the version, or
    when it was promoted"""


@dataclass(frozen=True, kw_only=True)
class Version(VersionSummary):
    """A version's provenance and report."""

    domain: str
    files: dict[str, str] = field(default_factory=dict)
    """SHA-256 of each file, by name"""
    report: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Drift(Answer):
    """Recently scored texts and pairs, compared with the text that the champion was fitted to."""

    texts: int = 0
    pairs: int = 0
    out_of_domain: float | None = None
    """share of texts flagged as `out_of_domain`; about 0.01 for the domain's own text"""
    stability_index: float | None = None
    """population stability index of recent similarities, compared with the first similarities that the champion gave;
    above 0.25, the similarities have shifted"""


@dataclass(frozen=True, kw_only=True)
class Domain(Answer):
    """A domain: its champion and previous version, thresholds, versions and drift."""

    domain: str
    champion: int | None = None
    """0 for the domain `default` without a version: its texts are scored without a calibration"""
    previous: int | None = None
    revision: int | None = None
    """number of changes of the domain's champion, previous version and thresholds; null if it cannot be read"""
    thresholds: dict[str, dict[str, float]] = field(default_factory=dict)
    """saved targets by name; GET /domains/{domain}/thresholds gives each target's threshold"""
    versions: tuple[VersionSummary, ...] = ()
    unreadable: tuple[str, ...] = ()
    """errors of the domain's record; empty if it can be read. A champion in memory answers all the same"""
    drift: Drift | None = None
    """null until texts of the domain are scored"""


@dataclass(frozen=True, kw_only=True)
class ThresholdWithTexts(Answer):
    """The probability at or above which pairs of texts match. Intervals: 95 %."""

    probability: float
    interval: Interval
    recall: float
    recall_interval: Interval
    precision_interval: Interval


@dataclass(frozen=True, kw_only=True)
class Threshold(Answer):
    """The similarity at or above which pairs match, for a wanted false-match rate, false-hit rate or precision."""

    # Figures that the target does not have are left out.
    __pydantic_config__: ClassVar[dict[str, Any]] = {"use_attribute_docstrings": True}

    domain: str
    version: int
    target: dict[str, float] = field(default_factory=dict)
    space: Literal["raw", "calibrated"] = "calibrated"
    similarity: float
    interval: Interval | None = None
    """95 % interval of the similarity, from a bootstrap over sentences or labelled pairs"""
    unit: str | None = None
    """unit of the distance, if the request named one"""
    distance: float | None = None
    """the threshold as a distance in `unit`"""
    distance_interval: Interval | None = None
    """95 % interval of the distance"""
    pairs: int | None = None
    """number of pairs that the threshold was computed from: random pairs for fmr, labelled pairs for precision,
    comparisons in searches for false_hit_rate"""
    extrapolated: bool = False
    """true if the similarity is extrapolated. With fmr: fmr or 1 - fmr is below 10 / `pairs` (with 10,000 pairs: below
    0.001). With false_hit_rate: false hits were counted only in searches among fewer entries than `gallery`, or only at
    false-match rates that are all higher or all lower than `false_match_rate`"""
    false_match_rate: float | None = None
    """share of random pairs that reach this threshold. The share of false matches among the pairs found is a different
    number: 1 - precision"""
    recall: float | None = None
    """with precision: share of true matches that reach the threshold"""
    recall_interval: Interval | None = None
    """95 % interval of the recall"""
    precision_interval: Interval | None = None
    """with precision: 95 % interval of the precision at this similarity; target.precision is the estimate. The interval
    is not symmetric. It is wide if few labelled pairs reach the similarity"""
    with_texts: ThresholdWithTexts | None = None
    """with precision, if the version learnt from the words of labelled pairs: what decides for pairs of texts. The
    similarity is then for callers with vectors or cosines. null: the similarity decides for all pairs"""


@dataclass(frozen=True, kw_only=True)
class SavedThreshold(Answer):
    """A saved target, and its similarity threshold for the version that the domain uses."""

    name: str
    target: dict[str, float] = field(default_factory=dict)
    similarity: float | None = None
    """lowest similarity that counts as a match; null if the version cannot reach the target"""
    probability: float | None = None
    """if not null, pairs of texts match from this probability, whatever their similarity"""
    interval: Interval | None = None
    """95 % interval of the similarity; null if the similarity is null"""
    extrapolated: bool | None = None
    """as in GET /domains/{domain}/threshold; null if the version cannot reach the target"""
    notice: str | None = None
    """why similarity is null; else null"""


@dataclass(frozen=True, kw_only=True)
class Thresholds(Answer):
    """The saved thresholds of a domain."""

    domain: str
    version: int
    """version for which the similarities are computed"""
    revision: int
    """number of changes of the domain's champion, previous version and thresholds"""
    thresholds: tuple[SavedThreshold, ...] = ()
    """sorted by name"""


@dataclass(frozen=True, kw_only=True)
class SavedTarget(Answer):
    """A target that was saved under a name."""

    domain: str
    name: str
    target: dict[str, float] = field(default_factory=dict)
    revision: int
    """revision of the domain after the change"""
    notice: str | None = None
    """why the version in use cannot reach the target; else null"""
