"""The gate: chooses the post-processing map of a domain for the method `auto`.

A rule decides: "raw" vectors get soft whitening, other vectors stay unchanged. Vectors are raw if both of these
conditions hold:

1. The vectors depend much on a sentence's surface (length, punctuation marks, digits, capitals; see `Surface.rawness`),
   or they have collapsed onto few directions.
2. The encoder does not recognize sentences after a change of capitals and punctuation.

Two tests can overrule the rule. Vectors stay unchanged if whitening makes noisy copies of sentences harder to find. If
there are labels, a method that is significantly better on the labels is chosen. Other methods are fitted for this test
and for the report. Flows are fitted only if there are labels, because flows take longer than all other methods together
and gained nothing in our measurements (docs/quality.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isosim.arrays import Rows, Vectors
from isosim.fitting.candidates import (
    Candidate,
    Evidence,
    Labels,
    candidates,
    hold_out,
    measure_candidates,
)
from isosim.fitting.evidence import LabelTest, Surface, score_of
from isosim.fitting.recognition import Embed, recognition_of

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
class Choice:
    """The chosen method, the reason in a few sentences, and the statistics that led to the choice.

    `evidence` describes the domain's vectors; `candidates` holds the statistics of each method that was tried.
    """

    method: str
    reason: str
    evidence: Evidence
    candidates: list[Candidate]


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
    if len(texts) < FEWEST_MEASURED or not rule.evidence:
        return rule
    rng = np.random.default_rng(seed)
    usable, remark = usable_labels(labels, rng)
    split = hold_out(vectors, copies, rng)
    methods = candidates(rule.method, vectors.shape, flows=usable is not None)
    tried, test = measure_candidates(methods, split, usable, seed)
    by_method = {candidate.method: candidate.evidence for candidate in tried}
    z = by_method[rule.method]["copies_z"]
    # Whitening gives vectors the same likelihood as a Gaussian that is fitted to the training vectors.
    gaussian = by_method["whitening"]["bits_per_dimension"]
    facts = {**rule.evidence, "gaussian_bits_per_dimension": gaussian, "copies_z": z}
    ruled, verdict = by_copies(rule.method, z, len(split.copies))
    verdicts = [rule.reason, *verdict, *remark]
    if test is not None:
        ruled, verdict_of_labels = by_labels(test, ruled)
        facts["labelled_pairs"] = float(test.pairs)
        verdicts.append(verdict_of_labels)
    return Choice(ruled, " ".join(verdicts), facts, tried)


def decide(texts: Sequence[str], vectors: Vectors, embed: Embed | None, *, seed: int = 0) -> Choice:
    """Applies only the rule, without copies and labels, to at most 3,000 sentences; this takes a second or two."""
    picked = np.sort(np.random.default_rng(seed).permutation(len(texts))[:PROBED])
    sample = vectors[picked].astype(np.float64)
    if not np.square(sample - sample.mean(0)).sum() > 1e-9 * np.square(sample).sum():
        return Choice("identity", "The sentences' vectors do not differ; no map can tell them apart.", {}, [])
    surface = Surface.from_sentences([texts[row] for row in picked.tolist()], sample)
    wanted, found_again = strength(surface, len(texts)), None
    if wanted >= STRENGTH_FLOOR and embed is not None:
        found_again = recognition_of(texts, embed, np.random.default_rng(seed))
        wanted *= smoothstep((RECOGNIZED_OFF - found_again) / (RECOGNIZED_OFF - RECOGNIZED_FULL))
    method = f"soft:{wanted:.3f}" if wanted >= STRENGTH_FLOOR else "identity"
    facts = describe(surface, wanted, len(texts)) | {"recognition": found_again}
    return Choice(method, because(surface, wanted, found_again, len(texts)), facts, [])


def by_copies(ruled: str, z: float | None, count: int) -> tuple[str, list[str]]:
    """Replaces the rule's method by identity if the method makes noisy copies harder to find.

    Returns the method, and the reason in a sentence (no reason if there are no copies or the method is identity).
    """
    if z is None:
        return ruled, []
    if z >= VETO_Z:
        return ruled, [f"Whitening does not make noisy copies of the sentences harder to find (paired z {z:+.1f})."]
    return "identity", [
        f"But whitening makes noisy copies of the sentences harder to find (paired z {z:.1f}, {count} copies): scores "
        "stay raw cosines."
    ]


def describe(surface: Surface, wanted: float, sentences: int) -> dict[str, float | None]:
    return {
        "sentences": float(sentences),
        "crowding": surface.crowding,
        "surface_share": surface.share,
        "surface_share_reference": surface.share_reference,
        "surface_ratio": surface.share_ratio,
        "directions": surface.directions,
        "directions_reference": surface.directions_reference,
        "directions_ratio": surface.directions_ratio,
        "rawness": surface.rawness,
        "strength": wanted,
    }


def because(surface: Surface, wanted: float, found_again: float | None, sentences: int) -> str:
    """The rule's evidence and conclusion in words, for a report."""
    if sentences <= FEWEST_SENTENCES:
        return (
            f"{sentences} distinct sentences are too few to judge the vectors: over {FEWEST_SENTENCES} are needed; "
            "scores stay raw cosines."
        )
    seen = (
        f"Length, punctuation marks, digits and capitals explain {surface.share:.1%} of the vectors' variance, "
        f"{surface.share_ratio:.2f} times as much as for a bag of words; the vectors use {surface.directions:.0f} "
        f"directions, {surface.directions_ratio:.2f} times as many as a bag of words. This gives a rawness of "
        f"{surface.rawness:.2f}; random pairs have a mean cosine of {surface.crowding:.3f}"
    )
    above = (
        f"The rawness is above {RAW_OFF:g}"
        if surface.rawness > RAW_OFF
        else "The space has collapsed onto few directions"
    )
    if found_again is None and wanted >= STRENGTH_FLOOR:
        return (
            f"{seen}. {above}: the space is raw, and is whitened softly with strength {wanted:.2f}. The encoder is not "
            "available to test whether it recognizes sentences after a change of capitals and punctuation."
        )
    if found_again is None:
        compared = "no more than" if surface.rawness <= RAW_OFF else "hardly above"
        return (
            f"{seen}. The rawness is {compared} {RAW_OFF:g}: the encoder is fit for this text, and scores stay raw "
            "cosines."
        )
    again = f"{found_again:.0%} of the sentences are recognized after a change of capitals and punctuation"
    if wanted < STRENGTH_FLOOR:
        return f"{seen}; but {again}: the encoder is fit for this text, and scores stay raw cosines."
    return f"{seen}. {above}, and only {again}: the space is raw, and is whitened softly with strength {wanted:.2f}."


def usable_labels(labels: Labels | None, rng: np.random.Generator) -> tuple[Labels | None, list[str]]:
    """Selects at most 2,000 labelled pairs for `by_labels`.

    If the pairs cannot be used, returns None and the reason in a sentence (no reason if there are no pairs).
    """
    if labels is None:
        return None, []
    count, values = len(labels.values), labels.values
    if score_of(values) == "auroc":
        ones = int((values == 1).sum())
        if min(ones, count - ones) < FEWEST_OF_A_CLASS:
            remark = f"The labels cannot check this choice: there are {ones} ones and {count - ones} zeros"
            return None, [f"{remark}, but at least {FEWEST_OF_A_CLASS} of each are needed."]
    rows = np.sort(rng.permutation(count)[:MOST_LABELS])
    return Labels(labels.left[rows], labels.right[rows], values[rows].astype(np.float64)), []


def by_labels(test: LabelTest, ruled: str) -> tuple[str, str]:
    """Tests the rule's method on labelled pairs; returns the chosen method, and the reason in a sentence."""
    others = [m for m in test.scores if m not in {"identity", ruled}]
    level = SIGNIFICANCE / max(len(others), 1)
    sure = [m for m in others if max(test.p_not_better(m, "identity"), test.p_not_better(m, ruled)) <= level]
    by = f"{test.pairs} labelled pairs (scored by {'AUROC' if test.kind == 'auroc' else 'Spearman'} × 100)"
    figures = f"identity {100 * test.scores['identity']:.1f}"
    if ruled != "identity":
        figures += f", {ruled} {100 * test.scores[ruled]:.1f}"
    if sure:
        best = max(sure, key=lambda m: test.scores[m])
        return best, (
            f"{by} overrule this: {best} scores {100 * test.scores[best]:.1f}, {figures}; it is better than "
            f"{'both' if ruled != 'identity' else 'identity'} in a paired bootstrap, corrected for {len(others)} "
            "candidates."
        )
    if ruled != "identity" and test.p_not_better("identity", ruled) <= SIGNIFICANCE:
        return "identity", f"{by} overrule this: {figures}; {ruled} is significantly worse, so scores stay raw cosines."
    return ruled, f"{by} do not overrule this: {figures}; none of {len(others)} other candidates is clearly better."
