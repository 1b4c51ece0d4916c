"""The threshold advisor: the similarity that reaches a false-match rate, a precision or a false-hit rate.

Usage: `advise(model, "tickets", Target(fmr=0.01)).similarity` is the similarity that 1 in 100 random pairs reach.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from isosim.errors import Action, Conflict, InvalidInput, NotFound
from isosim.scoring.calibration import Calibration, DomainModel
from isosim.scoring.false_hits import MOST_BEYOND, FalseHitTable
from isosim.scoring.false_hits import SMALLEST_RATE as SMALLEST_FALSE_HIT_RATE
from isosim.scoring.pair_features import PairMap
from isosim.scoring.probability import ProbabilityMap
from isosim.scoring.reference import TOLERANCE, ReferenceDistribution
from isosim.scoring.similarity import Scores

SMALLEST_FMR = 1e-7  # smallest permitted false-match rate; no calibration has enough text for a smaller one
MOST_GALLERY = 10**9  # maximum number of entries of a searched gallery
MOST_DECISIONS = 100  # maximum number of thresholds cached per version; a domain can save 50 thresholds
NO_FALSE_HITS = "domain {!r} was calibrated by a release that did not count false hits of searches; calibrate it again"


@dataclass(frozen=True)
class Advice:
    """A recommended similarity, its 95 % interval, and the data behind it."""

    target: dict[str, float]
    similarity: float  # rounded by `in_single_precision`
    interval: tuple[float, float]
    pairs: int  # number of pairs in the data: labelled pairs for a precision, otherwise random pairs
    extrapolated: bool  # whether the target's rate was extrapolated, because the sample is too small to count it
    facts: dict[str, Any] = field(default_factory=dict)  # other figures at this similarity

    def as_facts(self) -> dict[str, Any]:
        """All figures as one dictionary, for JSON."""
        own = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "facts"}
        return own | self.facts


@dataclass(frozen=True)
class Target:
    """The goal of a threshold: exactly one of `fmr`, `precision` and `false_hit_rate`.

    `gallery` is the number of entries that a search compares with a query; it is given together with `false_hit_rate`.

    Raises:
        InvalidInput: none or several of the rates are given, only one of `gallery` and `false_hit_rate` is given, or a
            value is out of range.
    """

    fmr: float | None = None
    precision: float | None = None
    false_hit_rate: float | None = None
    gallery: int | None = None

    def __post_init__(self) -> None:
        given = sum(one is not None for one in (self.fmr, self.precision, self.false_hit_rate))
        if given != 1:
            count = "several are given" if given else "none is given"
            raise InvalidInput(f"fmr, precision or false_hit_rate: give one of them, for example fmr=0.01; {count}")
        if (self.false_hit_rate is None) != (self.gallery is None):
            raise InvalidInput("false_hit_rate and gallery (the number of entries searched): give both")
        if self.fmr is not None and not SMALLEST_FMR <= self.fmr < 1:
            raise InvalidInput(f"fmr: {self.fmr:g}; it must be a share, at least {SMALLEST_FMR:g} and less than 1")
        if self.precision is not None and not 0 < self.precision < 1:
            raise InvalidInput(f"precision: {self.precision:g}; it must be more than 0 and less than 1")
        share = self.false_hit_rate
        if share is not None and not SMALLEST_FALSE_HIT_RATE <= share < 1:
            raise InvalidInput(
                f"false_hit_rate: {share:g}; it must be at least {SMALLEST_FALSE_HIT_RATE:g} and less than 1"
            )
        if self.gallery is not None and not 1 <= self.gallery <= MOST_GALLERY:
            raise InvalidInput(f"gallery: {self.gallery}; the number of entries must be 1 to {MOST_GALLERY:,}")

    @property
    def facts(self) -> dict[str, float | int]:
        """The fields that are set, by name; `from_facts` is the inverse."""
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name)) is not None}

    @classmethod
    def from_facts(cls, facts: object) -> Self:
        """Makes a target from stored fields, as `facts` returns them. Raises InvalidInput if they are malformed."""
        if not isinstance(facts, dict) or not facts.keys() <= {one.name for one in fields(cls)}:
            raise InvalidInput(f"a target has the fields fmr, precision, false_hit_rate and gallery, not {facts!r:.80}")
        for name, value in facts.items():
            if type(value) is not int and (type(value) is not float or name == "gallery"):
                raise InvalidInput(f"{name}: {value!r:.80} must be a number; gallery must be an integer")
        return cls(**facts)


def advise(model: DomainModel, domain: str, target: Target, *, raw: bool = False) -> Advice:
    """The similarity that reaches a target.

    The result is rounded up to float32, because the similarities in responses are float32. If a client compares these
    similarities with the result, it finds the same matches as the server.

    Raises:
        Conflict: the domain lacks what the target needs: a reference, labels, or counts of false hits.
        InvalidInput: no threshold of the version reaches the target.
    """
    advice = advise_exactly(model, domain, target, raw=raw)
    similarity = in_single_precision(advice.similarity)
    low, high = advice.interval
    return replace(advice, similarity=similarity, interval=(min(low, similarity), max(high, similarity)))


def advise_exactly(model: DomainModel, domain: str, target: Target, *, raw: bool) -> Advice:
    if target.precision is not None:
        return for_precision(model, domain, target.precision, raw=raw)
    if target.false_hit_rate is not None and target.gallery is not None:
        return for_false_hits(model, domain, target.false_hit_rate, target.gallery, raw=raw)
    fmr = target.fmr
    assert fmr is not None  # noqa: S101 - a target has one of the three
    reference = model.raw_reference if raw else model.reference
    if reference is None:
        raise no_reference(domain)
    check_reachable(reference, domain, fmr)
    interval = reference.interval(fmr)
    beyond = bool(reference.extrapolated(np.array([fmr]))[0])
    return Advice({"fmr": fmr}, reference.threshold(fmr), interval, reference.pairs, beyond)


def check_reachable(reference: ReferenceDistribution, domain: str, fmr: float) -> None:
    """Raises InvalidInput if no threshold has a false-match rate near `fmr`; the message names reachable rates.

    This happens if many pairs have the same similarity (a tie). A threshold accepts either all these pairs or none.
    """
    lower, upper = reference.reachable(fmr)
    if lower >= fmr / TOLERANCE:
        return
    tie = int(np.flatnonzero(reference.gaps[:, 1] >= upper)[-1])
    share, at = reference.tied_rates[tie], reference.tied[tie]
    instead = f"the smallest rate that a threshold reaches is {rounded(upper):g}"
    if lower > 0:
        instead = f"the nearest rates that a threshold reaches are {lower:.3g} and {rounded(upper):g}"
    raise InvalidInput(
        f"fmr: {fmr:g} cannot be reached in {domain!r}, where {share:.2%} of the random pairs have the same "
        f"similarity, {at:.4f}, because their texts repeat; {instead}"
    )


def false_hits_of(model: DomainModel, domain: str, *, raw: bool) -> tuple[ReferenceDistribution, FalseHitTable]:
    """The reference and the counts of false hits. Raises Conflict if the version lacks them."""
    reference = model.raw_reference if raw else model.reference
    table = model.raw_false_hits if raw else model.false_hits
    if reference is None:
        raise no_reference(domain)
    if table is None:
        raise Conflict(NO_FALSE_HITS.format(domain))
    return reference, table


def check_gallery(table: FalseHitTable, domain: str, gallery: int) -> None:
    """Raises InvalidInput if `gallery` is larger than MOST_BEYOND × `table.entries`.

    `table.entries` is the largest number of searched entries at which false hits were counted.
    """
    most = MOST_BEYOND * table.entries
    if gallery > most:
        raise InvalidInput(
            f"gallery: {gallery:,}; it may have at most {most:,} entries, because false hits in {domain!r} were "
            f"counted on only {table.entries + 1:,} sentences; calibrate the domain from more text"
        )


def for_false_hits(model: DomainModel, domain: str, share: float, gallery: int, *, raw: bool) -> Advice:
    """The threshold at which a fraction `share` of queries has at least one false hit among `gallery` entries."""
    reference, table = false_hits_of(model, domain, raw=raw)
    check_gallery(table, domain, gallery)
    level = table.level(share, gallery)
    lower, upper = reference.reachable(level.rate)
    if lower < level.rate / TOLERANCE:
        least = rounded(table.share(np.array([upper]), gallery)[0])
        instead = f"the next reachable rate is {least:g}" if least < 1 else "no rate is reachable"
        raise InvalidInput(
            f"false_hit_rate: {share:g} cannot be reached in {domain!r} among {gallery:,} entries, because texts "
            f"repeat there; {instead}"
        )
    similarity, low, high = (reference.threshold(rate) for rate in (level.rate, level.high, level.low))
    return Advice(
        {"false_hit_rate": share, "gallery": gallery},
        similarity,
        (min(low, similarity), max(high, similarity)),
        table.queries * table.entries,
        level.extrapolated,
        {"false_match_rate": level.rate},
    )


def rounded(rate: float) -> float:
    """The rate, rounded up to three significant digits. A rate that is rounded down might be out of reach."""
    unit = 10.0 ** (math.floor(math.log10(rate)) - 2)
    return float(f"{math.ceil(rate / unit) * unit:.3g}")


def for_precision(model: DomainModel, domain: str, precision: float, *, raw: bool) -> Advice:
    labelled = model.probability
    if labelled is None:
        raise Conflict(f"domain {domain!r} was given no labels").with_remedy(Action.ADD_LABELS, domain=domain)
    if raw:
        raise Conflict("a precision needs calibrated similarities; give fmr instead")
    try:
        similarity, low, high = labelled.precision_threshold(precision)
    except ValueError as error:
        raise InvalidInput(str(error)) from None
    facts: dict[str, Any] = {}
    if model.reference is not None:
        facts["false_match_rate"] = float(model.reference.false_match_rate(np.array([similarity]))[0])
    facts |= shares(labelled, precision)
    if model.pair_map is not None:
        facts["with_texts"] = for_texts(model.pair_map, precision)
    return Advice({"precision": precision}, similarity, (low, high), labelled.pairs, extrapolated=False, facts=facts)


def for_texts(pair_map: PairMap, precision: float) -> dict[str, Any] | None:
    """The probability that reaches a precision, for pairs whose texts are known; None: the similarity decides for these
    too, because the probabilities reach no such precision."""
    try:
        probability, *interval = pair_map.curve.precision_threshold(precision)
    except ValueError:
        return None
    return {"probability": probability, "interval": interval, **shares(pair_map.curve, precision)}


def shares(labelled: ProbabilityMap, precision: float) -> dict[str, Any]:
    """Recall at a precision's threshold, and the 95 % intervals of recall and precision."""
    recall, *interval = labelled.recall(precision)
    interval_of_precision = [*labelled.precision_interval(precision)]
    return {"recall": recall, "recall_interval": interval, "precision_interval": interval_of_precision}


TABLE = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)  # precisions that get a row in `operating_points`
GALLERY = 10_000  # default number of entries that a query is compared with


def operating_points(model: DomainModel, gallery: int = GALLERY) -> list[dict[str, Any]]:
    """Thresholds for the precisions in TABLE that the labelled pairs reach, one row each.

    The list is empty for a version that has no labels, no reference or no precisions.

    A row contains the threshold and its rates. `alarms` is the mean number of wrong matches of a query that is compared
    with `gallery` entries.
    """
    labelled = model.probability
    if labelled is None or model.reference is None or not len(labelled.precisions):
        return []
    rows = []
    for precision in TABLE:
        if labelled.precisions[0] <= precision <= labelled.precisions[-1]:
            advice = advise(model, "", Target(precision=precision))
            rows.append(
                {
                    "precision": precision,
                    "similarity": advice.similarity,
                    "interval": list(advice.interval),
                    **advice.facts,
                    "alarms": advice.facts["false_match_rate"] * gallery,
                }
            )
    return rows


@dataclass(frozen=True)
class DecisionThreshold:
    """Decides whether a pair matches, for one version and one target.

    A pair matches if its similarity is at least `similarity`, which is None if the version cannot reach the target.
    With a `pair_map` and a precision, a pair of texts matches if its probability is at least `probability`.
    """

    target: Target
    similarity: float | None = None  # exact in float32, as the similarities in responses are
    probability: float | None = None  # for pairs of texts; None: `similarity` decides
    interval: tuple[float, float] | None = None  # 95 % interval of the similarity
    extrapolated: bool | None = None
    notice: str | None = None  # if `similarity` is None: the reason

    @property
    def reached(self) -> bool:
        return self.similarity is not None

    def matches(self, scores: Scores, *, texts: bool = False) -> npt.NDArray[np.bool_] | None:
        """Whether each pair matches (P,); None if the target is not reached. Unreadable texts never match.

        Args:
            texts: the probabilities are of pairs whose texts are known.
        """
        if self.similarity is None:
            return None
        passing: npt.NDArray[np.bool_] = scores.similarity >= np.float32(self.similarity)
        if texts and self.probability is not None and scores.probability is not None:
            passing = scores.probability >= self.probability
        return passing if scores.unreadable is None else passing & ~scores.unreadable


def decision_threshold(calibration: Calibration, target: Target) -> DecisionThreshold:
    """The threshold of a version for a target, from the version's cache if possible."""
    known: DecisionThreshold | None = calibration.decisions.get(target)
    if known is None:
        if len(calibration.decisions) >= MOST_DECISIONS:
            calibration.decisions.clear()
        known = calibration.decisions[target] = decide(calibration.model, calibration.domain, target)
    return known


def decide(model: DomainModel, domain: str, target: Target) -> DecisionThreshold:
    """Computes the threshold of a version for a target."""
    try:
        advice = advise(model, domain, target)
    except (Conflict, InvalidInput) as error:
        return DecisionThreshold(target, notice=str(error))
    probability = (advice.facts.get("with_texts") or {}).get("probability")
    return DecisionThreshold(target, advice.similarity, probability, advice.interval, advice.extrapolated)


def lost_targets(
    champion: DomainModel, challenger: DomainModel, domain: str, targets: Mapping[str, Target]
) -> dict[str, str]:
    """Saved targets that the champion reaches and the challenger does not: name -> why not."""
    lost = {}
    for name, target in targets.items():
        decision = decide(challenger, domain, target)
        if not decision.reached and decide(champion, domain, target).reached:
            lost[name] = str(decision.notice)
    return lost


def told(lost: Mapping[str, str]) -> str:
    """Names of lost targets, with the reasons."""
    return "; ".join(f"{name} ({why})" for name, why in lost.items())


def check_lost(lost: Mapping[str, str], without: Collection[str], version: int) -> None:
    """Raises Conflict if a promotion loses saved targets that are not named in `without`."""
    if unnamed := {name: why for name, why in lost.items() if name not in without}:
        raise Conflict(
            f"version {version} makes saved thresholds unreachable: {told(unnamed)}; to promote it all the same, name "
            f"them: without={','.join(unnamed)}"
        )


def in_single_precision(similarity: float) -> float:
    """The similarity, rounded up to float32, in its shortest decimal form.

    If a client compares the float32 similarities of responses with this number, it finds the server's matches.

    >>> in_single_precision(0.41), in_single_precision(0.4100000001)
    (0.41000003, 0.41000003)
    >>> in_single_precision(0.5)
    0.5
    """
    rounded = np.float32(similarity)
    if float(rounded) < similarity:
        rounded = np.nextafter(rounded, np.float32(2))
    return float(str(rounded))


def targets_in(saved: object) -> dict[str, Target]:
    """Saved targets by name, sorted. Skips entries that are damaged or have the format of a newer release."""
    targets: dict[str, Target] = {}
    if not isinstance(saved, dict):
        return targets
    for name in sorted(saved):
        try:
            targets[name] = Target.from_facts(saved[name])
        except (InvalidInput, OverflowError):  # OverflowError: an integer too large for a float
            continue
    return targets


def unknown_threshold(domain: str, name: str) -> NotFound:
    error = NotFound(f"threshold: domain {domain!r} has no saved threshold {name[:80]!r}")
    return error.with_remedy(Action.LIST_THRESHOLDS, domain=domain)


def no_reference(domain: str) -> Conflict:
    return Conflict(f"domain {domain!r} has no reference (similarities of random pairs of its text)").with_remedy(
        Action.CALIBRATE, domain=domain
    )
