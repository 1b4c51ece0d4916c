"""Fits several methods for a domain, and evaluates them on held-out sentences and on labelled pairs.

The method that the rule in `gate.py` has chosen is among them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from isosim.arrays import Doubles, Rows, Vectors
from isosim.errors import InvalidInput
from isosim.fitting import evidence
from isosim.fitting.evidence import LabelTest
from isosim.fitting.linear import Spectrum
from isosim.fitting.methods import WHITENING_KEEP, FittedMap, bits_per_dimension, fit, is_flow
from isosim.scoring.similarity import cosine

MEASURED_SHARE = 0.2  # share of the sentences that is used to evaluate the candidates, not to fit them
MOST_MEASURED = 1000
MOST_FITTED = 10_000
FLOW_SENTENCES = 500  # smallest number of sentences with which flows are tried
MOST_FLOW_SENTENCES = 5000
FEWEST_COPIES = 20
RANDOM_PAIRS = 5000

Evidence = Mapping[str, float | None]


@dataclass(frozen=True)
class Labels:
    """Labelled pairs: vectors (L, D) of both texts, labels 0/1 or grades (L,), weights (L,) or None if all equal."""

    left: Vectors
    right: Vectors
    values: npt.NDArray[np.float64]
    weights: npt.NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Candidate:
    """Statistics of one method. A statistic is None if it cannot be computed."""

    method: str
    evidence: Evidence


@dataclass(frozen=True)
class HeldOutSplit:
    """Vectors (N, D) to which the candidates are fitted, and other vectors on which they are evaluated."""

    fit: Vectors
    stop: Vectors  # the first tenth of `fit`; decides when a flow's training stops, and is not used to train the flow
    measured: Vectors
    originals: Vectors  # (M, D), the vectors of `measured` whose texts have a noisy copy
    copies: Vectors  # (M, D), the noisy copies, in the order of `originals`


def hold_out(vectors: Vectors, copies: tuple[Rows, Vectors] | None, rng: np.random.Generator) -> HeldOutSplit:
    """Holds out a fifth of the sentences (at most 1,000) for evaluation; sentences with a noisy copy come first."""
    order = rng.permutation(len(vectors))
    rows, noisy = copies if copies is not None else (np.empty(0, np.intp), vectors[:0])
    copied = np.isin(order, rows)
    order = np.concatenate([order[copied], order[~copied]])
    count = min(int(MEASURED_SHARE * len(vectors)), MOST_MEASURED)
    measured, rest = order[:count], rng.permutation(order[count:])[:MOST_FITTED]
    inside = np.isin(rows, measured)
    enough = inside.sum() >= FEWEST_COPIES
    stop = len(rest) // 10
    return HeldOutSplit(
        fit=vectors[rest],
        stop=vectors[rest[:stop]],
        measured=vectors[measured],
        originals=vectors[rows[inside]] if enough else vectors[:0],
        copies=noisy[inside] if enough else vectors[:0],
    )


def candidates(ruled: str, shape: tuple[int, ...], *, flows: bool) -> list[str]:
    """Names of the methods to try, from simple to complex; `ruled` is the method that the rule in `gate.py` chose."""
    count, dim = shape
    methods = [
        "identity",
        "centring",
        "mean-direction:0.5",
        "mean-direction",
        "sn",
        "nulling:1",
        "nulling:3",
        "tempered",
        "whitening",
    ]
    methods += [f"whitening-k:{WHITENING_KEEP}"] if dim > WHITENING_KEEP else []
    methods += [ruled] if ruled not in {"identity", "soft:1.000"} else []
    methods += ["soft:1.000" if ruled == "soft:1.000" else "soft:1"]
    if flows and count >= FLOW_SENTENCES:
        methods += ["flow", "soft-flow" if ruled == "identity" else ruled.replace("soft", "soft-flow")]
    return methods


def measure_candidates(
    methods: Sequence[str], split: HeldOutSplit, labels: Labels | None, seed: int
) -> tuple[list[Candidate], LabelTest | None]:
    """Fits each method to `split.fit`, and evaluates it on the held-out sentences and on the labelled pairs."""
    spectrum = Spectrum.from_vectors(split.fit)
    pairs = random_pairs(len(split.measured), np.random.default_rng(seed))
    raw_loss = evidence.info_nce(split.copies, split.originals) if len(split.copies) else None
    seen: dict[str, dict[str, float | None]] = {}
    similarities = {}
    for method in methods:
        fitted = fit_or_none(method, split, spectrum, seed)
        seen[method] = look(fitted, split, pairs, raw_loss)
        if fitted is not None and labels is not None:
            similarities[method] = cosine(fitted(labels.left), fitted(labels.right))
    test = None if labels is None else LabelTest.from_labels(similarities, labels.values, seed)
    return [Candidate(method, facts | labelled_facts(test, method)) for method, facts in seen.items()], test


def fit_or_none(method: str, split: HeldOutSplit, spectrum: Spectrum, seed: int) -> FittedMap | None:
    """The fitted map; None if a flow diverged or all vectors are equal."""
    train = split.fit[len(split.stop) :][:MOST_FLOW_SENTENCES] if is_flow(method) else split.fit
    try:
        return fit(method, train, split.stop, seed, spectrum=spectrum)
    except (FloatingPointError, InvalidInput):
        return None


def random_pairs(count: int, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """Row numbers of random pairs of sentences; the two sentences of a pair differ."""
    left = rng.integers(count, size=RANDOM_PAIRS)
    return left, (left + rng.integers(1, count, size=RANDOM_PAIRS)) % count


def look(
    fitted: FittedMap | None, split: HeldOutSplit, pairs: tuple[Rows, Rows], raw_loss: Doubles | None
) -> dict[str, float | None]:
    """Statistics of a map on held-out sentences, computed without labels. All are None if `fitted` is None.

    `raw_loss` (M,) is the InfoNCE loss of each noisy copy without a map.
    """
    names = (
        "mean_random_cosine", "effective_rank", "hubness", "agreement", "bits_per_dimension", "info_nce", "copies_z",
    )  # fmt: skip
    facts: dict[str, float | None] = dict.fromkeys(names)
    if fitted is None:
        return facts
    latents = fitted(split.measured)
    space = evidence.space(latents, np.random.default_rng(0))
    facts |= {
        "mean_random_cosine": space["mean_random_cosine"],
        "effective_rank": space["effective_rank"],
        "hubness": evidence.hubness(latents),
        "agreement": evidence.agreement(split.measured, latents, *pairs),
        "bits_per_dimension": bits_per_dimension(fitted, split.measured),
    }
    if raw_loss is not None:
        loss = evidence.info_nce(fitted(split.copies), fitted(split.originals))
        facts["info_nce"] = float(loss.mean())
        if fitted.weights is not None:
            facts["copies_z"] = evidence.paired_z(raw_loss - loss)
    return facts


def labelled_facts(test: LabelTest | None, method: str) -> dict[str, float | None]:
    names = ("labelled_score", "labelled_gain", "labelled_gain_low", "labelled_gain_high", "p_not_better")
    if test is None or method not in test.scores:
        return dict.fromkeys(names)
    if method == "identity":
        return dict.fromkeys(names) | {"labelled_score": test.scores[method]}
    low, high = np.nanquantile(test.samples[method] - test.samples["identity"], [0.025, 0.975])
    values = (test.scores[method], test.gain(method, "identity"), float(low), float(high))
    return dict(zip(names, (*values, test.p_not_better(method, "identity")), strict=True))
