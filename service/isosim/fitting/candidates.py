"""Fits several methods for a domain, and evaluates them on held-out sentences and on labelled pairs.

The method that the rule in `gate.py` has chosen is among them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from isosim.arrays import Doubles, Rows, Vectors
from isosim.errors import InvalidInput
from isosim.fitting import evidence
from isosim.fitting.evidence import LabelTest
from isosim.fitting.linear import Spectrum
from isosim.fitting.methods import DEFAULT_STRENGTHS, FittedMap, fit
from isosim.scoring.method import IDENTITY, Method
from isosim.scoring.similarity import cosine

MEASURED_SHARE = 0.2  # share of the sentences that is used to evaluate the candidates, not to fit them
MOST_MEASURED = 1000
MOST_FITTED = 10_000
FLOW_SENTENCES = 500  # smallest number of sentences with which flows are tried
MOST_FLOW_SENTENCES = 5000
FEWEST_COPIES = 20
RANDOM_PAIRS = 5000
SIMPLE = (
    IDENTITY, Method("centring"), Method("mean-direction", 0.5), Method("mean-direction"), Method("sn"),
    Method("nulling", 1), Method("nulling", 3), Method("tempered"), Method("whitening"),
)  # fmt: skip


@dataclass(frozen=True)
class Labels:
    """Labelled pairs: vectors (L, D) of both texts, labels 0/1 or grades (L,), weights (L,) or None if all equal."""

    left: Vectors
    right: Vectors
    values: npt.NDArray[np.float64]
    weights: npt.NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Statistics:
    """Statistics of one method on held-out sentences and on labelled pairs. None: it cannot be computed."""

    mean_random_cosine: float | None = None
    effective_rank: float | None = None
    hubness: float | None = None
    agreement: float | None = None  # Spearman correlation of random pairs' cosines before and after the map
    bits_per_dimension: float | None = None
    info_nce: float | None = None  # mean loss of the noisy copies
    copies_z: float | None = None  # paired z of the loss of the noisy copies; negative: harder to find than without map
    labelled_score: float | None = None  # AUROC or Spearman correlation
    labelled_gain: float | None = None  # compared with identity, with the limits of its 95 % interval
    labelled_gain_low: float | None = None
    labelled_gain_high: float | None = None
    p_not_better: float | None = None  # one-sided p-value for being better than identity


@dataclass(frozen=True)
class Candidate:
    method: Method
    evidence: Statistics


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


def candidates(ruled: Method, shape: tuple[int, ...], *, flows: bool) -> list[Method]:
    """The methods to try, from simple to complex; `ruled` is the method that the rule in `gate.py` chose."""
    count, dim = shape
    methods = list(SIMPLE)
    keep = DEFAULT_STRENGTHS["whitening-k"]
    methods += [Method("whitening-k", keep)] if dim > keep else []
    methods += [ruled] if ruled not in methods else []
    methods += [Method("soft", 1)]
    if flows and count >= FLOW_SENTENCES:
        methods += [Method("flow"), Method("soft-flow", ruled.strength)]
    return methods


def measure_candidates(
    methods: Sequence[Method], split: HeldOutSplit, labels: Labels | None, seed: int
) -> tuple[list[Candidate], LabelTest | None]:
    """Fits each method to `split.fit`, and evaluates it on the held-out sentences and on the labelled pairs."""
    spectrum = Spectrum.from_vectors(split.fit)
    pairs = random_pairs(len(split.measured), np.random.default_rng(seed))
    raw_loss = evidence.info_nce(split.copies, split.originals) if len(split.copies) else None
    measured: dict[Method, Statistics] = {}
    similarities = {}
    for method in methods:
        fitted = fit_or_none(method, split, spectrum, seed)
        measured[method] = Statistics() if fitted is None else measure(fitted, split, pairs, raw_loss)
        if fitted is not None and labels is not None:
            similarities[method] = cosine(fitted(labels.left), fitted(labels.right))
    if labels is None:
        return [Candidate(method, statistics) for method, statistics in measured.items()], None
    test = LabelTest.from_labels(similarities, labels.values, seed)
    return [Candidate(method, with_labels(known, test, method)) for method, known in measured.items()], test


def fit_or_none(method: Method, split: HeldOutSplit, spectrum: Spectrum, seed: int) -> FittedMap | None:
    """The fitted map; None if a flow diverged or all vectors are equal."""
    train = split.fit[len(split.stop) :][:MOST_FLOW_SENTENCES] if method.is_flow else split.fit
    try:
        return fit(method, train, split.stop, seed, spectrum=spectrum)
    except (FloatingPointError, InvalidInput):
        return None


def random_pairs(count: int, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """Row numbers of random pairs of sentences; the two sentences of a pair differ."""
    left = rng.integers(count, size=RANDOM_PAIRS)
    return left, (left + rng.integers(1, count, size=RANDOM_PAIRS)) % count


def measure(fitted: FittedMap, split: HeldOutSplit, pairs: tuple[Rows, Rows], raw_loss: Doubles | None) -> Statistics:
    """Statistics of a map on held-out sentences, computed without labels.

    `raw_loss` (M,) is the InfoNCE loss of each noisy copy without a map.
    """
    latents = fitted(split.measured)
    space = evidence.Space.from_vectors(latents, np.random.default_rng(0))
    statistics = Statistics(
        mean_random_cosine=space.mean_random_cosine,
        effective_rank=space.effective_rank,
        hubness=evidence.hubness(latents),
        agreement=evidence.agreement(split.measured, latents, *pairs),
        bits_per_dimension=fitted.bits_per_dimension(split.measured),
    )
    if raw_loss is None:
        return statistics
    loss = evidence.info_nce(fitted(split.copies), fitted(split.originals))
    z = None if fitted.weights is None else evidence.paired_z(raw_loss - loss)
    return replace(statistics, info_nce=float(loss.mean()), copies_z=z)


def with_labels(known: Statistics, test: LabelTest, method: Method) -> Statistics:
    if method not in test.scores:
        return known
    known = replace(known, labelled_score=test.scores[method])
    if method == IDENTITY:
        return known
    low, high = np.nanquantile(test.samples[method] - test.samples[IDENTITY], [0.025, 0.975])
    return replace(
        known,
        labelled_gain=test.gain(method, IDENTITY),
        labelled_gain_low=float(low),
        labelled_gain_high=float(high),
        p_not_better=test.p_not_better(method, IDENTITY),
    )
