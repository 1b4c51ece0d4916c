"""The report of a calibration: what was measured, as facts. Front ends word them.

A report is stored as JSON beside the version that it describes; the names of fields are a contract with its readers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from isosim.arrays import Rows
from isosim.fitting.evidence import LabelTest, RankTest
from isosim.fitting.gate import Rule
from isosim.fitting.probability import Comparison, ProbabilityReport
from isosim.scoring.method import IDENTITY
from isosim.scoring.reference import ReferenceDistribution

AGREEMENT_LEVEL = 0.01  # significance level of the tests whether labels agree with the encoder's similarities
MOST_GROUPS = 20  # largest number of groups of repeated texts in a report, and of lines per group


@dataclass(frozen=True, kw_only=True)
class LabelReport(ProbabilityReport):
    """What labelled pairs have taught."""

    posted: int
    contradictions: dict[str, Any]  # labelled both 0 and 1, left out; see `requirements.without_contradictions`
    unreadable: int  # left out
    table: list[dict[str, Any]]  # see `advice.operating_points`
    rank_test: RankTest  # of the labels with the encoder's similarities
    pair_features: Comparison | None = None  # of `pair_map` with the similarity alone; None: not tried
    notice: str | None = None  # a warning, if the labels do not clearly agree with the similarities

    @classmethod
    def build(cls, learnt: ProbabilityReport, rank_test: RankTest, **facts: Any) -> Self:
        notice = None
        if not (rank_test.p_agree is not None and rank_test.p_agree < AGREEMENT_LEVEL):
            notice = (
                f"the labels do not clearly agree with the similarities ({rank_test} over {learnt.pairs} pairs), so "
                "probabilities learnt from them may mean little; check the labels or send more of them"
            )
        return cls(**vars(learnt), rank_test=rank_test, notice=notice, **facts)


@dataclass(frozen=True, kw_only=True)
class Report:
    """The report of a fit."""

    posted: int  # number of sentences or vectors, duplicates included
    distinct: int
    text_sha256: str | None = None  # of the sample's texts
    vectors_sha256: str | None = None  # of the sample's vectors, if vectors were sent
    unreadable: int = 0  # distinct texts that were left out
    # What takes the encoder or texts: `out_of_domain`, `recognition`, `rawness`. So it was not judged for vectors.
    not_judged: Sequence[str] = ()
    method: str
    asked: str
    evidence: Rule | None  # None: the method was asked for, or there were no texts
    candidates: list[dict[str, Any]]  # methods that were tried on labels
    settings: dict[str, Any]
    seed: int
    sentences: int  # distinct ones that were used
    fit_sentences: int
    held_out_sentences: int
    before: dict[str, float]  # see `evidence.spread`
    after: dict[str, float]
    reference: dict[str, Any]
    raw_reference: dict[str, Any]
    repeated: dict[str, Any] | None
    domain_test: bool
    labels: LabelReport | None
    duration_seconds: dict[str, float]  # by stage


def candidate_facts(test: LabelTest) -> list[dict[str, Any]]:
    """Each method's score on the labelled pairs, and its gain over identity with a 95 % interval."""
    rows = []
    for method, score in test.scores.items():
        low, high = np.nanquantile(test.samples[method] - test.samples[IDENTITY], [0.025, 0.975]).tolist()
        rows.append(
            {"method": str(method), "score": score, "gain": test.gain(method, IDENTITY), "interval": [low, high]}
        )
    return rows


def repeated_facts(groups: Sequence[Rows], lines: Sequence[int]) -> dict[str, Any] | None:
    """Groups of distinct texts with the same vector, such as mails that begin alike and are truncated.

    `lines` has the line number of each vector's text, counted from 1; blank lines are not counted.
    """
    if not groups:
        return None
    named = [{"texts": len(rows), "lines": [lines[row] for row in rows[:MOST_GROUPS]]} for rows in groups[:MOST_GROUPS]]
    return {"texts": sum(map(len, groups)), "vectors": len(groups), "groups": named}


def reference_facts(made: ReferenceDistribution, folds: int) -> dict[str, Any]:
    ties = zip(made.tied.tolist(), made.tied_rates.tolist(), strict=True)
    return {
        "pairs": made.pairs,
        "folds": folds,
        "resolution": made.resolution,
        "tail_error": made.tail_error,
        "threshold_at_1_percent": made.threshold(0.01),
        "interval_at_1_percent": made.interval(0.01),
        "curve": made.curve(),
        "smallest_rate": made.smallest_rate,
        "ties": [{"similarity": similarity, "rate": rate} for similarity, rate in ties],
    }
