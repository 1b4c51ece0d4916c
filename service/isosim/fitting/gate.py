"""The gate: chooses the post-processing map of a domain for the method `auto`.

A rule decides: "raw" vectors get soft whitening, other vectors stay unchanged. Vectors are raw if both of these
conditions hold:

1. The vectors depend much on a sentence's surface (length, punctuation marks, digits, capitals; see `Surface.rawness`),
   or they have collapsed onto few directions.
2. The encoder does not recognize sentences after a change of capitals and punctuation.

Labels can overrule the rule: if there are any, other methods are fitted too, and one that is significantly better on
the labels is chosen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from isosim.arrays import Doubles, Vectors
from isosim.errors import InvalidInput
from isosim.fitting.evidence import LabelTest, Surface, score_of
from isosim.fitting.linear import Spectrum, share_of_one
from isosim.fitting.methods import DEFAULT_STRENGTHS, fit
from isosim.fitting.recognition import Embed, recognition_of
from isosim.scoring.method import IDENTITY, Method
from isosim.scoring.similarity import cosine

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
# If so many of the vectors are equal, no other method can be fitted: a quarter of the vectors, such as a fold of a
# flow's reference distribution leaves out, may be all others.
SAME_SHARE = 0.75

FEWEST_OF_A_CLASS = 10  # smallest number of pairs with each of the labels 0 and 1
MOST_LABELS = 2000  # largest number of labelled pairs; from more pairs, a random sample is drawn
SIGNIFICANCE = 0.05  # one-sided level of the test on labels, for all candidates together (Bonferroni)
MOST_FITTED, MOST_FLOW_SENTENCES = 10_000, 5000  # largest numbers of sentences to which candidates are fitted
FLOW_SENTENCES = 500  # smallest number of sentences with which flows are tried
SIMPLE = (
    IDENTITY, Method("centring"), Method("mean-direction", 0.5), Method("mean-direction"), Method("sn"),
    Method("nulling", 1), Method("nulling", 3), Method("tempered"), Method("whitening"),
)  # fmt: skip


@dataclass(frozen=True)
class Labels:
    """Labelled pairs."""

    left: Vectors  # (L, D)
    right: Vectors  # (L, D)
    values: Doubles  # (L,) 0 and 1, or grades
    weights: Doubles | None = None  # (L,); None: all are equal
    features: Doubles | None = None  # (L, F) of the pairs of texts; None: vectors were sent
    origin: Mapping[str, Any] = field(default_factory=dict)  # how many were posted and left out, for `LabelReport`


@dataclass(frozen=True)
class Rule:
    """The rule's measurements, and the strength of soft whitening that follows from them; 0 is identity."""

    sentences: int
    surface: Surface | None  # None: most vectors are equal
    strength: float = 0.0
    recognition: float | None = None  # share of sentences recognized after a change; None if it was not measured
    rawness: float | None = None  # see `Surface.rawness`

    @property
    def method(self) -> Method:
        return Method("soft", round(self.strength, 3)) if self.strength >= STRENGTH_FLOOR else IDENTITY


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
    texts: Sequence[str] | None,
    vectors: Vectors,
    embed: Embed | None,
    *,
    labels: Labels | None = None,
    seed: int = 0,
) -> tuple[Method, Rule | None, LabelTest | None]:
    """Chooses the method for a domain's distinct sentences and their vectors (N, D); without texts, identity.

    Also returns the rule, which is None if there were no texts, and the test on labels that can overrule it, which is
    None if there were too few.

    Args:
        embed: the encoder, for the test whether it recognizes sentences after a change of capitals and punctuation.
            None: this test is left out.
        labels: at least 20 labelled pairs of the domain with different labels. They can overrule the rule.
        seed: seed of all random samples; the same input and seed give the same choice.
    """
    if texts is None:
        return IDENTITY, None, None
    rule, rng = decide(texts, vectors, embed, seed=seed), np.random.default_rng(seed)
    usable = None if labels is None or rule.surface is None else usable_labels(labels, rng)
    if usable is None:
        return rule.method, rule, None
    tested = label_test(vectors, usable, rule.method, seed, rng)
    return by_labels(tested, rule.method), rule, tested


def decide(texts: Sequence[str], vectors: Vectors, embed: Embed | None, *, seed: int = 0) -> Rule:
    """Applies only the rule, without labels, to at most 3,000 sentences; this takes a second or two."""
    picked = np.sort(np.random.default_rng(seed).permutation(len(texts))[:PROBED])
    sample = vectors[picked].astype(np.float64)
    spread = np.square(sample - sample.mean(0)).sum() > 1e-9 * np.square(sample).sum()
    if not spread or share_of_one(sample) >= SAME_SHARE:
        return Rule(len(texts), None)
    surface = Surface.from_sentences([texts[row] for row in picked.tolist()], sample)
    by_surface = strength(surface, len(texts))
    if by_surface < STRENGTH_FLOOR or embed is None:
        return Rule(len(texts), surface, by_surface, None, surface.rawness)
    recognition = recognition_of(texts, embed, np.random.default_rng(seed))
    raw = smoothstep((RECOGNIZED_OFF - recognition) / (RECOGNIZED_OFF - RECOGNIZED_FULL))
    return Rule(len(texts), surface, by_surface * raw, recognition, surface.rawness)


def usable_labels(labels: Labels, rng: np.random.Generator) -> Labels | None:
    """At most 2,000 of the labelled pairs; None if there are too few with one of the labels 0 and 1."""
    count, values = len(labels.values), labels.values
    if score_of(values) == "auroc" and min((values == 1).sum(), (values == 0).sum()) < FEWEST_OF_A_CLASS:
        return None
    rows = np.sort(rng.permutation(count)[:MOST_LABELS])
    return Labels(labels.left[rows], labels.right[rows], values[rows].astype(np.float64))


def candidates(ruled: Method, count: int, dim: int) -> list[Method]:
    """The methods to try, from simple to complex; `ruled` is the one that the rule chose."""
    keep = DEFAULT_STRENGTHS["whitening-k"]
    methods = [*SIMPLE, *([Method("whitening-k", keep)] if dim > keep else [])]
    methods += [] if ruled in methods else [ruled]
    flows = [Method("flow"), Method("soft-flow", ruled.strength)] if count >= FLOW_SENTENCES else []
    return [*methods, Method("soft", 1), *flows]


def label_test(vectors: Vectors, labels: Labels, ruled: Method, seed: int, rng: np.random.Generator) -> LabelTest:
    """Fits each candidate to some of the vectors (N, D), and scores it on the labelled pairs.

    Leaves out candidates that cannot be fitted: a flow that diverged, or all of the vectors are equal.
    """
    own = vectors[rng.permutation(len(vectors))[:MOST_FITTED]]
    stop, spectrum, similarities = len(own) // 10, Spectrum.from_vectors(own), {}
    for method in candidates(ruled, *vectors.shape):
        train = own[stop:][:MOST_FLOW_SENTENCES] if method.is_flow else own
        try:
            fitted = fit(method, train, own[:stop], seed, spectrum=spectrum)
        except (FloatingPointError, InvalidInput):
            continue
        similarities[method] = cosine(fitted(labels.left), fitted(labels.right))
    return LabelTest.from_labels(similarities, labels.values, seed)


def by_labels(test: LabelTest, ruled: Method) -> Method:
    """The method that is clearly better than the rule's, identity if it is better than the rule's, else the rule's."""
    others = [m for m in test.scores if m not in {IDENTITY, ruled}]
    level = SIGNIFICANCE / max(len(others), 1)
    sure = [m for m in others if max(test.p_not_better(m, IDENTITY), test.p_not_better(m, ruled)) <= level]
    if sure:
        return max(sure, key=lambda m: test.scores[m])
    return IDENTITY if ruled != IDENTITY and test.p_not_better(IDENTITY, ruled) <= SIGNIFICANCE else ruled
