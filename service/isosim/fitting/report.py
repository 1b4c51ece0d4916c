"""The report of a calibration: what was measured, and the sentences in which it is told.

A report is stored as JSON beside the version that it describes; its names are a contract with its readers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from isosim.arrays import Rows
from isosim.fitting.evidence import RankTest, Space, Surface
from isosim.fitting.gate import (
    FEWEST_OF_A_CLASS,
    FEWEST_SENTENCES,
    RAW_OFF,
    STRENGTH_FLOOR,
    Choice,
    LabelVerdict,
    Rule,
    TooFewLabels,
)
from isosim.fitting.methods import FittedMap
from isosim.fitting.pair_map import PairReport
from isosim.fitting.probability import ProbabilityReport
from isosim.jobs.job import JobRequest
from isosim.scoring.calibration import DomainModel
from isosim.scoring.method import IDENTITY, Method
from isosim.scoring.reference import ReferenceDistribution

AGREEMENT_LEVEL = 0.01  # significance level of the tests whether labels agree with the encoder's similarities
MOST_GROUPS = 20  # largest number of groups of repeated texts in a report, and of lines per group
WITHOUT_TEXT = (
    "Without texts, isosim cannot test how much the vectors depend on the surface of sentences, "
    "so scores stay raw cosines."
)
SAME_VECTORS = "the encoder gives most sentences the same vector, so no method except identity can be fitted"
NOT_JUDGED = {
    "out_of_domain": (
        "whether a text belongs to the domain, because isosim cannot count tokens or embed altered texts "
        "without the encoder"
    ),
    "recognition": (
        "whether sentences are recognized after a change of capitals and punctuation, because this needs the encoder"
    ),
    "rawness": "how much the vectors depend on the surface of sentences, because the vectors were sent without texts",
}


@dataclass(frozen=True)
class Origin:
    """Where the sentences or vectors of a calibration come from."""

    posted: int  # number of sentences or vectors, duplicates included
    distinct: int
    sha256: str  # of the sample's texts, or of its vectors if `brought`
    unreadable: int = 0  # distinct texts that were left out
    brought: bool = False  # vectors were sent
    texts: bool = True  # the texts were sent

    def as_facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"posted": self.posted, "distinct": self.distinct}
        facts["vectors_sha256" if self.brought else "text_sha256"] = self.sha256
        if self.unreadable:
            facts["unreadable"] = self.unreadable
        if self.brought:
            judged = {"rawness"} if self.texts else set()
            facts["not_judged"] = {name: why for name, why in NOT_JUDGED.items() if name not in judged}
        return facts


@dataclass(frozen=True)
class LabelOrigin:
    """How many labelled pairs were posted, and which of them were left out."""

    posted: int
    contradictions: dict[str, Any]  # labelled both 0 and 1; see `requirements.without_contradictions`
    unreadable: int

    def as_facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"posted": self.posted}
        if self.contradictions:
            facts["contradictions"] = self.contradictions
        if self.unreadable:
            facts["unreadable"] = self.unreadable
        return facts


@dataclass(frozen=True)
class LabelReport:
    """What labelled pairs have taught."""

    learnt: ProbabilityReport
    table: list[dict[str, Any]]  # see `advice.operating_points`
    agreement: RankTest  # of the labels with the encoder's similarities
    origin: LabelOrigin
    features: PairReport | None = None  # None: not tried

    @property
    def notice(self) -> str | None:
        """A warning, if the labels do not clearly agree with the similarities."""
        if self.agreement.p_agree < AGREEMENT_LEVEL:
            return None
        return (
            f"the labels do not clearly agree with the similarities ({self.agreement} over {self.learnt.pairs} "
            "pairs), so probabilities learnt from them may mean little; check the labels or send more of them"
        )

    def as_facts(self) -> dict[str, Any]:
        p = self.agreement.p_agree
        test = {"kind": self.agreement.kind, "value": self.agreement.value, "p": None if np.isnan(p) else p}
        notice = {} if self.notice is None else {"notice": self.notice}
        features = {} if self.features is None else {"pair_features": self.features.as_facts()}
        facts = {**self.learnt.as_facts(), "table": self.table, "rank_test": test, **features}
        return {**facts, **notice, **self.origin.as_facts()}


@dataclass(frozen=True)
class Repeats:
    """Groups of distinct texts with the same vector, such as mails that begin alike and are truncated.

    `lines` has the line number of each vector's text, counted from 1; blank lines are not counted.
    """

    groups: Sequence[Rows]
    lines: Sequence[int]

    @property
    def texts(self) -> int:
        return sum(map(len, self.groups))

    def as_facts(self) -> dict[str, Any] | None:
        if not self.groups:
            return None
        return {
            "texts": self.texts,
            "vectors": len(self.groups),
            "groups": [
                {"texts": len(rows), "lines": [self.lines[row] for row in rows[:MOST_GROUPS]]}
                for rows in self.groups[:MOST_GROUPS]
            ],
        }


class Report(Protocol):
    """A report that a version is published with."""

    @property
    def sentences(self) -> int: ...

    @property
    def labels(self) -> LabelReport | None: ...

    def as_facts(self) -> dict[str, Any]:
        """The report as it is stored: JSON."""


@dataclass(frozen=True)
class FitReport:
    """The report of a fit. `choice` is None if the method was asked for."""

    request: JobRequest
    fitted: FittedMap
    model: DomainModel
    choice: Choice | None
    same_vectors: bool  # identity replaces the chosen method, because most vectors are equal
    origin: Origin
    held_out_sentences: int
    before: Space
    after: Space
    bits_per_dimension: float | None
    gaussian_bits_per_dimension: float
    folds: int  # of the reference distribution
    repeats: Repeats
    labels: LabelReport | None
    seconds: dict[str, float]  # by stage

    @property
    def sentences(self) -> int:
        return len(self.repeats.lines)

    @property
    def reason(self) -> str:
        if self.choice is None:
            return f"method {self.request.method} was asked for"
        return f"{reason(self.choice)}; {SAME_VECTORS}" if self.same_vectors else reason(self.choice)

    def as_facts(self) -> dict[str, Any]:
        choice = self.choice
        return {
            "method": str(self.fitted.method),
            "asked": self.request.method,
            "reason": self.reason,
            "evidence": None if choice is None else evidence_facts(choice),
            "candidates": [
                {"method": str(one.method), "evidence": asdict(one.evidence)} for one in choice.candidates
            ] if choice else [],
            "settings": self.fitted.settings,
            "seed": self.request.seed,
            "used": self.sentences,
            "sentences": self.sentences,
            **self.origin.as_facts(),
            "fit_sentences": 0 if self.fitted.weights is None else self.sentences - self.held_out_sentences,
            "held_out_sentences": self.held_out_sentences,
            "before": asdict(self.before),
            "after": asdict(self.after),
            "bits_per_dimension": self.bits_per_dimension,
            "gaussian_bits_per_dimension": self.gaussian_bits_per_dimension,
            "reference": reference_facts(self.model.reference, self.folds),
            "raw_reference": reference_facts(self.model.raw_reference, 1),
            "repeated": self.repeats.as_facts(),
            "domain_test": self.model.domain_test is not None,
            "labels": None if self.labels is None else self.labels.as_facts(),
            "duration_seconds": self.seconds,
        }  # fmt: skip


@dataclass(frozen=True)
class LabelledReport:
    """The report of a version that adds labels to an earlier one, whose own report is `earlier`."""

    earlier: Mapping[str, Any]
    base: int
    labels: LabelReport
    seconds: dict[str, float]

    @property
    def sentences(self) -> int:
        sentences: int = self.earlier["sentences"]
        return sentences

    def as_facts(self) -> dict[str, Any]:
        own = {"labels": self.labels.as_facts(), "base": self.base, "duration_seconds": self.seconds}
        return {**self.earlier, **own}


def evidence_facts(choice: Choice) -> dict[str, float | None]:
    rule = choice.rule
    if rule is None or rule.surface is None:
        return {}
    surface = rule.surface
    facts: dict[str, float | None] = {
        "sentences": float(rule.sentences),
        "crowding": surface.crowding,
        "surface_share": surface.share,
        "surface_share_reference": surface.share_reference,
        "surface_ratio": surface.share_ratio,
        "directions": surface.directions,
        "directions_reference": surface.directions_reference,
        "directions_ratio": surface.directions_ratio,
        "rawness": surface.rawness,
        "strength": rule.strength,
        "recognition": rule.recognition,
    }
    if choice.candidates:
        by_method = {candidate.method: candidate.evidence for candidate in choice.candidates}
        # Whitening gives vectors the same likelihood as a Gaussian that is fitted to the training vectors.
        facts["gaussian_bits_per_dimension"] = by_method[Method("whitening")].bits_per_dimension
        facts["copies_z"] = choice.copies_z
    if isinstance(choice.labels, LabelVerdict):
        facts["labelled_pairs"] = float(choice.labels.pairs)
    return facts


def reference_facts(made: ReferenceDistribution | None, folds: int) -> dict[str, Any] | None:
    if made is None:
        return None
    facts: dict[str, Any] = {
        "pairs": made.pairs,
        "folds": folds,
        "resolution": made.resolution,
        "tail_error": made.tail_error,
        "threshold_at_1_percent": made.threshold(0.01),
        "interval_at_1_percent": made.interval(0.01),
        "curve": made.curve(),
    }
    if len(made.tied):
        ties = zip(made.tied.tolist(), made.tied_rates.tolist(), strict=True)
        facts["smallest_rate"] = made.smallest_rate
        facts["ties"] = [{"similarity": similarity, "rate": rate} for similarity, rate in ties]
    return facts


def reason(choice: Choice) -> str:
    """Why a method was chosen, in a few sentences."""
    if choice.rule is None:
        return WITHOUT_TEXT
    sentences = [reason_of_rule(choice.rule)]
    z = choice.copies_z
    if choice.vetoed:
        sentences.append(
            f"But whitening makes noisy copies of the sentences harder to find (paired z {z:.1f}, {choice.copies} "
            "copies): scores stay raw cosines."
        )
    elif z is not None:
        sentences.append(f"Whitening does not make noisy copies of the sentences harder to find (paired z {z:+.1f}).")
    if isinstance(choice.labels, TooFewLabels):
        sentences.append(
            f"The labels cannot check this choice: there are {choice.labels.ones} ones and {choice.labels.zeros} "
            f"zeros, but at least {FEWEST_OF_A_CLASS} of each are needed."
        )
    elif choice.labels is not None:
        sentences.append(reason_of_labels(choice.labels))
    return " ".join(sentences)


def reason_of_rule(rule: Rule) -> str:
    if rule.surface is None:
        return "The sentences' vectors do not differ; no map can tell them apart."
    if rule.sentences <= FEWEST_SENTENCES:
        return (
            f"{rule.sentences} distinct sentences are too few to judge the vectors: over {FEWEST_SENTENCES} are "
            "needed; scores stay raw cosines."
        )
    surface, strength = rule.surface, rule.strength
    seen = measurements(surface)
    above = (
        f"The rawness is above {RAW_OFF:g}"
        if surface.rawness > RAW_OFF
        else "The space has collapsed onto few directions"
    )
    if rule.recognition is None and strength >= STRENGTH_FLOOR:
        return (
            f"{seen}. {above}: the space is raw, and is whitened softly with strength {strength:.2f}. The encoder is "
            "not available to test whether it recognizes sentences after a change of capitals and punctuation."
        )
    if rule.recognition is None:
        compared = "no more than" if surface.rawness <= RAW_OFF else "hardly above"
        return (
            f"{seen}. The rawness is {compared} {RAW_OFF:g}: the encoder is fit for this text, and scores stay raw "
            "cosines."
        )
    again = f"{rule.recognition:.0%} of the sentences are recognized after a change of capitals and punctuation"
    if strength < STRENGTH_FLOOR:
        return f"{seen}; but {again}: the encoder is fit for this text, and scores stay raw cosines."
    return f"{seen}. {above}, and only {again}: the space is raw, and is whitened softly with strength {strength:.2f}."


def measurements(surface: Surface) -> str:
    return (
        f"Length, punctuation marks, digits and capitals explain {surface.share:.1%} of the vectors' variance, "
        f"{surface.share_ratio:.2f} times as much as for a bag of words; the vectors use {surface.directions:.0f} "
        f"directions, {surface.directions_ratio:.2f} times as many as a bag of words. This gives a rawness of "
        f"{surface.rawness:.2f}; random pairs have a mean cosine of {surface.crowding:.3f}"
    )


def reason_of_labels(verdict: LabelVerdict) -> str:
    scores = {method: f"{100 * score:.1f}" for method, score in verdict.scores.items()}
    by = f"{verdict.pairs} labelled pairs (scored by {'AUROC' if verdict.kind == 'auroc' else 'Spearman'} × 100)"
    figures = f"identity {scores[IDENTITY]}"
    ruled, method = verdict.ruled, verdict.method
    if ruled != IDENTITY:
        figures += f", {ruled} {scores[ruled]}"
    if method == ruled:
        return f"{by} do not overrule this: {figures}; none of {verdict.others} other candidates is clearly better."
    if method == IDENTITY:
        return f"{by} overrule this: {figures}; {ruled} is significantly worse, so scores stay raw cosines."
    return (
        f"{by} overrule this: {method} scores {scores[method]}, {figures}; it is better than "
        f"{'both' if ruled != IDENTITY else 'identity'} in a paired bootstrap, corrected for {verdict.others} "
        "candidates."
    )
