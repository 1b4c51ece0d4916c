"""The gate: chooses the post-processing map of a domain for the method `auto`.

A rule decides: "raw" vectors get soft whitening, other vectors stay unchanged. Vectors are raw if both of these
conditions hold:

1. The vectors depend much on a sentence's surface (length, punctuation marks, digits, capitals; see `Surface.rawness`),
   or they have collapsed onto few directions.
2. The encoder does not recognize sentences after a change of capitals and punctuation.

Two tests can overrule the rule. Vectors stay unchanged if whitening makes noisy copies of sentences harder to find. If
there are labels, a method that is significantly better on the labels is chosen. Other methods are fitted for this test
and for the report. Flows are fitted only if there are labels, because flows take longer than all other methods together
and gained nothing in our measurements (docs/decisions/gate.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from isosim.arrays import Rows, Vectors
from isosim.fitting.candidates import Candidate, Labels, candidates, hold_out, measure_candidates
from isosim.fitting.evidence import LabelTest, Score, Surface, score_of
from isosim.fitting.recognition import Embed, recognition_of
from isosim.scoring.method import IDENTITY, Method

# Limits for soft whitening. At a limit named OFF, vectors stay unchanged. At a limit named FULL, vectors are whitened
# with full strength. Between the two limits, the strength changes smoothly.
RAW_OFF = 0.17  # largest rawness (dependence on length, punctuation, capitals) at which vectors stay unchanged
RAW_FULL = 0.29  # smallest rawness at which vectors are whitened with full strength
# The full strength. With a strength of 1, the ranking of Quora's question pairs is 1.2 points worse, and the ranking of
# other text is only slightly better.
STRONGEST = 0.9
# Limits of the share of sentences that the encoder recognizes after a change of capitals and punctuation.
RECOGNIZED_FULL = 0.70  # full strength if at most this share is recognized
RECOGNIZED_OFF = 0.80  # vectors stay unchanged if at least this share is recognized
# Limits of `Surface.directions_ratio`. If the ratio is small, the vectors have collapsed onto few directions. This is a
# second reason for whitening.
DIRECTIONS_OFF, DIRECTIONS_FULL = 0.3, 0.1
STRENGTH_FLOOR = 0.05  # smallest strength with which vectors are whitened
FEWEST_SENTENCES = 600  # with this many sentences or fewer, vectors stay unchanged, because the estimates are too noisy
SENTENCES_FULL = 1200  # with fewer sentences than this, the strength is reduced
PROBED = 3000  # largest number of sentences that the rule examines; memory grows with the square of this number
VETO_Z = -2.0  # if `copies_z` is lower, whitening makes noisy copies harder to find, and vectors stay unchanged

FEWEST_MEASURED = 50  # smallest number of sentences with which candidates are fitted
FEWEST_OF_A_CLASS = 10  # smallest number of pairs with each of the labels 0 and 1
MOST_LABELS = 2000  # largest number of labelled pairs; from more pairs, a random sample is drawn
SIGNIFICANCE = 0.05  # one-sided level of the test on labels, for all candidates together (Bonferroni)


@dataclass(frozen=True)
class Rule:
    """The rule's measurements, and the strength of soft whitening that follows from them; 0 is identity."""

    sentences: int
    surface: Surface | None  # None: all vectors are equal
    strength: float = 0.0
    recognition: float | None = None  # share of sentences recognized after a change; None if it was not measured

    @property
    def method(self) -> Method:
        return Method("soft", round(self.strength, 3)) if self.strength >= STRENGTH_FLOOR else IDENTITY


@dataclass(frozen=True)
class TooFewLabels:
    """Numbers of labels 1 and 0, of which at least one is too small for the test on labels."""

    ones: int
    zeros: int


@dataclass(frozen=True)
class LabelVerdict:
    """The method that the test on labelled pairs chooses; equal to `ruled` if the labels do not overrule the rule.

    `scores` has the scores of identity, `ruled` and `method`.
    """

    pairs: int
    kind: Score
    ruled: Method
    method: Method
    scores: dict[Method, float]
    others: int  # number of other candidates, for which the significance level is corrected


@dataclass(frozen=True)
class Choice:
    """The rule, the tests that can overrule it, and the statistics of each method that was tried.

    `rule` is None if there were no texts. `copies_z` is the paired z of the loss of the noisy copies by the rule's
    method; below VETO_Z, the copies are harder to find. None: there were no copies, or the rule chose identity.
    """

    rule: Rule | None
    copies_z: float | None = None
    copies: int = 0  # number of copies
    labels: LabelVerdict | TooFewLabels | None = None
    candidates: tuple[Candidate, ...] = ()

    @property
    def method(self) -> Method:
        if isinstance(self.labels, LabelVerdict):
            return self.labels.method
        return IDENTITY if self.rule is None or self.vetoed else self.rule.method

    @property
    def vetoed(self) -> bool:
        return self.copies_z is not None and self.copies_z < VETO_Z


def smoothstep(t: float) -> float:
    t = min(max(t, 0.0), 1.0)
    return t * t * (3 - 2 * t)


def strength(surface: Surface, sentences: int) -> float:
    """Strength of soft whitening, from 0 (identity) to `STRONGEST`.

    It is the larger of two values. One rises with the logarithm of `surface.rawness`. The other rises as
    `surface.directions_ratio` falls, because a low ratio indicates a collapse onto a few rogue dimensions (Timkey & van
    Schijndel, 2021, section 3). With few sentences the strength is reduced.
    """
    raw = np.log(max(surface.rawness, 1e-9) / RAW_OFF) / np.log(RAW_FULL / RAW_OFF)
    few = np.log(DIRECTIONS_OFF / max(surface.directions_ratio, 1e-6)) / np.log(DIRECTIONS_OFF / DIRECTIONS_FULL)
    enough = np.log(max(sentences, 1) / FEWEST_SENTENCES) / np.log(SENTENCES_FULL / FEWEST_SENTENCES)
    return STRONGEST * max(smoothstep(float(raw)), smoothstep(float(few))) * smoothstep(float(enough))


def choose(
    texts: Sequence[str],
    vectors: Vectors,
    embed: Embed | None,
    *,
    copies: tuple[Rows, Vectors] | None = None,
    labels: Labels | None = None,
    seed: int = 0,
) -> Choice:
    """Chooses the method for a domain's distinct sentences and their vectors (N, D).

    Args:
        embed: the encoder, for the test whether it recognizes sentences after a change of capitals and punctuation.
            None: this test is left out.
        copies: row numbers (M,) of some sentences, and vectors (M, D) of their noisy copies. If whitening makes the
            copies harder to find, the vectors stay unchanged.
        labels: at least 20 labelled pairs of the domain with different labels. They can overrule the rule.
        seed: seed of all random samples; the same input and seed give the same choice.
    """
    rule = decide(texts, vectors, embed, seed=seed)
    if len(texts) < FEWEST_MEASURED or rule.surface is None:
        return Choice(rule)
    rng = np.random.default_rng(seed)
    usable = None if labels is None else usable_labels(labels, rng)
    split = hold_out(vectors, copies, rng)
    known = usable if isinstance(usable, Labels) else None
    methods = candidates(rule.method, vectors.shape, flows=known is not None)
    tried, test = measure_candidates(methods, split, known, seed)
    (z,) = (candidate.evidence.copies_z for candidate in tried if candidate.method == rule.method)
    choice = Choice(rule, z, len(split.copies), None, tuple(tried))
    if isinstance(usable, TooFewLabels):
        return replace(choice, labels=usable)
    return choice if test is None else replace(choice, labels=by_labels(test, choice.method))


def decide(texts: Sequence[str], vectors: Vectors, embed: Embed | None, *, seed: int = 0) -> Rule:
    """Applies only the rule, without copies and labels, to at most 3,000 sentences; this takes a second or two."""
    picked = np.sort(np.random.default_rng(seed).permutation(len(texts))[:PROBED])
    sample = vectors[picked].astype(np.float64)
    if not np.square(sample - sample.mean(0)).sum() > 1e-9 * np.square(sample).sum():
        return Rule(len(texts), None)
    surface = Surface.from_sentences([texts[row] for row in picked.tolist()], sample)
    by_surface = strength(surface, len(texts))
    if by_surface < STRENGTH_FLOOR or embed is None:
        return Rule(len(texts), surface, by_surface)
    recognition = recognition_of(texts, embed, np.random.default_rng(seed))
    raw = smoothstep((RECOGNIZED_OFF - recognition) / (RECOGNIZED_OFF - RECOGNIZED_FULL))
    return Rule(len(texts), surface, by_surface * raw, recognition)


def usable_labels(labels: Labels, rng: np.random.Generator) -> Labels | TooFewLabels:
    """Selects at most 2,000 labelled pairs for `by_labels`, if there are enough of each kind."""
    count, values = len(labels.values), labels.values
    if score_of(values) == "auroc":
        ones = int((values == 1).sum())
        if min(ones, count - ones) < FEWEST_OF_A_CLASS:
            return TooFewLabels(ones, count - ones)
    rows = np.sort(rng.permutation(count)[:MOST_LABELS])
    return Labels(labels.left[rows], labels.right[rows], values[rows].astype(np.float64))


def by_labels(test: LabelTest, ruled: Method) -> LabelVerdict:
    """Tests on labelled pairs whether another method is better than the rule's, or identity better than it."""
    others = [m for m in test.scores if m not in {IDENTITY, ruled}]
    level = SIGNIFICANCE / max(len(others), 1)
    sure = [m for m in others if max(test.p_not_better(m, IDENTITY), test.p_not_better(m, ruled)) <= level]
    if sure:
        method = max(sure, key=lambda m: test.scores[m])
    elif ruled != IDENTITY and test.p_not_better(IDENTITY, ruled) <= SIGNIFICANCE:
        method = IDENTITY
    else:
        method = ruled
    scores = {m: test.scores[m] for m in (IDENTITY, ruled, method)}
    return LabelVerdict(test.pairs, test.kind, ruled, method, scores, len(others))
