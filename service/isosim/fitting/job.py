"""Runs a calibration: embeds texts, chooses and fits a method, and measures the result."""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from isosim.arrays import Doubles, Rows, Vectors
from isosim.domains.store import DomainStore, StoredVersion
from isosim.encoders.onnx_engine import OnnxCalibrator
from isosim.encoders.store import EncoderArtifact
from isosim.errors import EncoderMismatch, InvalidInput
from isosim.fitting import false_hits, gate, out_of_domain, pair_map, probability, reference
from isosim.fitting.calibrator import group_sizes
from isosim.fitting.evidence import RankTest, repeated, spread
from isosim.fitting.gate import Labels
from isosim.fitting.methods import FittedMap, fit
from isosim.fitting.publication import Fit
from isosim.fitting.recognition import Embed
from isosim.fitting.report import (
    AGREEMENT_LEVEL,
    LabelReport,
    Report,
    candidate_facts,
    reference_facts,
    repeated_facts,
)
from isosim.jobs.job import JobRequest, LabelledPair
from isosim.jobs.offline import BroughtItems, TextEncoder, find_unknown, find_unreadable, open_texts
from isosim.jobs.posted import Posted
from isosim.jobs.requirements import (
    besides,
    check_labels,
    check_readable,
    check_sentences,
    check_vectors,
    distinct_labels,
    draw,
    without_contradictions,
)
from isosim.jobs.vector_files import draw_rows
from isosim.scoring.advice import operating_points
from isosim.scoring.calibration import DomainModel
from isosim.scoring.false_hits import FalseHitTable
from isosim.scoring.method import Method
from isosim.scoring.out_of_domain import level_energies
from isosim.scoring.pair_features import FEWEST_LABELS, pair_features
from isosim.scoring.probability import evidence
from isosim.scoring.reference import ReferenceDistribution
from isosim.scoring.similarity import cosine

Progress = Callable[[float], None]  # completed share, 0–1

# Stages of a job, with its progress, 0–1, at the beginning and at the end of each.
STAGES = {"embedding": (0.0, 0.7), "choosing": (0.7, 0.75), "fitting": (0.75, 0.85), "measuring": (0.85, 0.95)}
HELD_OUT = 0.1  # share of the sentences that the final fit does not use
MOST_HELD_OUT = 2000
# Folds of the reference distribution. With 5 folds, thresholds are 1.5 % too strict; with 20 folds, thresholds for a
# rate of 0.1 % are noisier.
FOLDS = 10
FLOW_FOLDS = 4  # number of folds for flows; fitting a flow takes a hundred times as long as fitting a linear method


class Stages:
    """Reports a job's stage and progress, and records how many seconds each stage took."""

    def __init__(self, report: Callable[[str, float], None], spans: Mapping[str, tuple[float, float]]) -> None:
        """`spans`: the progress, 0–1, at the beginning and at the end of each stage."""
        self.report, self.spans = report, spans
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[Progress]:
        begin, end = self.spans[name]
        began = time.monotonic()
        self.report(name, begin)
        yield lambda done: self.report(name, begin + (end - begin) * done)
        self.seconds[name] = round(time.monotonic() - began, 3)


@dataclass(frozen=True)
class Sample:
    """The data that a calibration is made from: N distinct texts or vectors.

    In a job with vectors, `tokens` and `shuffled` are None, and `texts` can be None.
    """

    texts: list[str] | None
    vectors: Vectors  # (N, D)
    tokens: Rows | None  # (N,) numbers of tokens
    shuffled: Vectors | None  # vectors of copies with shuffled words
    lines: list[int]  # line in which each text first appears, or row of each vector, counted from 1
    labels: Labels | None
    origin: Mapping[str, Any]  # where the texts or vectors come from, for `Report`


def calibrate_job(
    request: JobRequest,
    posted: Posted,
    encoder: EncoderArtifact,
    domains: DomainStore,
    report: Callable[[str, float], None],
    *,
    threads: int,
    encode: TextEncoder | None = None,
) -> Fit:
    """Embeds the distinct texts or a sample of them, fits the requested method and measures it; writes nothing.

    Args:
        report: called with the name of a stage and the progress, 0–1.
        encode: function to use for encoding instead of loading the encoder in this process.

    Raises:
        InvalidInput: there are too few distinct sentences for the method, or the labels are not usable.
        FloatingPointError: the fit diverged.
    """
    torch.set_num_threads(threads or torch.get_num_threads())
    if threads:
        threadpool_limits(threads, "blas")  # not reset later, because this process ends with its job
    brought = encoder.kind == "vectors"
    if encode is None:
        encode = BroughtItems(encoder, posted.vectors) if brought else open_texts(encoder, threads)
    stages, method = Stages(report, STAGES), Method.parse(request.method)
    if request.base is not None:
        return label_job(request, request.base, posted.labels, encoder, domains, stages, encode)

    with stages("embedding") as progress:
        take = sample_vectors if brought else sample_texts
        sample = take(request, posted, encoder, encode, progress)
        vectors = sample.vectors
        repeats = repeated(vectors)
        distinct = len(vectors) - sum(map(len, repeats)) + len(repeats)
        check_vectors(request.method, encoder.spec.dim, len(vectors), distinct)

    # Taking the sample has a generator of its own, for copies of texts. So this one gives the same numbers for texts
    # as for their vectors.
    rng = np.random.default_rng([request.seed, len(vectors)])
    with stages("choosing"):
        order = rng.permutation(len(vectors))
        held = max(1, min(int(HELD_OUT * len(vectors)), MOST_HELD_OUT))
        held_out, train = vectors[order[:held]], vectors[order[held:]]
        rule, tested = None, None
        if method.name == "auto":
            embed: Embed | None = None if brought else lambda some: encode(some).vectors
            method, rule, tested = gate.choose(sample.texts, vectors, embed, labels=sample.labels, seed=request.seed)

    with stages("fitting") as progress:
        fitted = fit(method, train, held_out, request.seed, progress=progress)
        check_graph(fitted, encoder, held_out)
        del train  # frees 0.3 GB

    with stages("measuring") as progress:
        latents = cross_fitted(fitted, vectors, rng, progress)
        model = model_of(request.seed, fitted, sample, latents, rng, distinct)
        measured = vectors if fitted.weights is None else held_out
        before, after = (spread(x, rng) for x in (measured, fitted(measured)))
        labels = None
        if sample.labels is not None:
            model, labels = with_labels(model, fitted, sample.labels, request)
    assert model.reference is not None and model.raw_reference is not None  # noqa: S101 - by `model_of`
    facts = Report(
        **sample.origin,
        method=str(fitted.method),
        asked=request.method,
        evidence=rule,
        candidates=[] if tested is None else candidate_facts(tested),
        settings=fitted.settings,
        seed=request.seed,
        sentences=len(vectors),
        fit_sentences=0 if fitted.weights is None else len(vectors) - held,
        held_out_sentences=held,
        before=before,
        after=after,
        reference=reference_facts(model.reference, len(latents)),
        raw_reference=reference_facts(model.raw_reference, 1),
        repeated=repeated_facts(repeats, sample.lines),
        domain_test=model.domain_test is not None,
        labels=labels,
        duration_seconds=stages.seconds,
    )
    return Fit(request, encoder, fitted, model, held_out, asdict(facts), labels)


def label_job(
    request: JobRequest,
    base: int,
    labels: Sequence[LabelledPair],
    encoder: EncoderArtifact,
    domains: DomainStore,
    stages: Stages,
    encode: TextEncoder,
) -> Fit:
    """Makes a copy of the version `base`, with probabilities learnt from labels."""
    with stages("embedding") as progress:
        distinct, origin = readable_labels(labels, encoder, request.kind)
        stored: StoredVersion = domains.load(request.domain, base)
        if stored.version.encoder != encoder.digest:
            raise EncoderMismatch(f"version {base} of {request.domain!r} was made for another encoder")
        brought = encoder.kind == "vectors"
        sample = with_vectors(distinct, encode(sides(distinct), progress).vectors, origin, brought=brought)
    with stages("measuring"):
        fitted = FittedMap(Method.parse(stored.version.method), stored.weights)
        model, learnt = with_labels(stored.model, fitted, sample, request)
    own = {"labels": asdict(learnt), "base": base, "duration_seconds": stages.seconds}
    facts = {**domains.report(request.domain, base), **own}
    return Fit(request, encoder, fitted, model, sample.left[:0], facts, learnt)


def sample_texts(
    request: JobRequest, posted: Posted, encoder: EncoderArtifact, encode: TextEncoder, progress: Progress
) -> Sample:
    """Draws a sample of the distinct texts for the fit, and embeds it.

    The texts, shuffled copies and labelled pairs are embedded in one call. There are no copies of
    fewer than 1,000 texts.

    Raises:
        InvalidInput: there are too few distinct sentences for the method, or the labels are not usable.
    """
    lines, count, distinct = draw(posted.texts, request.seed)
    blind = find_unreadable([*lines], encoder)
    check_readable(len(lines), len(blind))
    texts = [text for text in lines if text not in blind]
    check_sentences(request.method, encoder.spec.dim, len(texts), unreadable=len(blind))
    labels, origin = readable_labels(posted.labels, encoder, request.kind)

    rng = np.random.default_rng(request.seed)
    enough = len(texts) >= out_of_domain.FEWEST
    shuffled = out_of_domain.shuffled_copies(texts, out_of_domain.SHUFFLED, rng) if enough else []
    encodings = encode([*texts, *shuffled, *sides(labels)], progress)
    own, salad, labelled = np.split(encodings.vectors, np.cumsum([len(texts), len(shuffled)]))
    return Sample(
        texts,
        own,
        encodings.tokens[: len(texts)],
        salad if len(shuffled) else None,
        [lines[text] for text in texts],
        with_vectors(labels, labelled, origin) if labels else None,
        {
            "posted": count,
            "distinct": distinct,
            "text_sha256": hashlib.sha256("\n".join(sorted(texts)).encode()).hexdigest(),
            "unreadable": len(blind),
        },
    )


def sample_vectors(
    request: JobRequest, posted: Posted, encoder: EncoderArtifact, encode: TextEncoder, _: Progress
) -> Sample:
    """Draws a sample of the distinct vectors for the fit, with their texts if there are any.

    Raises:
        InvalidInput: vectors are too few, or the labels are not usable.
    """
    file = posted.vectors
    assert file is not None  # noqa: S101 - an encoder without a model is posted vectors
    drawn = draw_rows(file, request.seed)
    check_sentences(request.method, encoder.spec.dim, len(drawn.rows), brought=True)
    wanted = set(drawn.rows.tolist())
    text_of = {row: text for row, text in enumerate(posted.texts) if row in wanted}
    texts = [text_of[row] for row in drawn.rows.tolist()] if text_of else None
    labels, origin = readable_labels(posted.labels, encoder, request.kind)
    return Sample(
        texts,
        drawn.vectors,
        None,
        None,
        (drawn.rows + 1).tolist(),
        with_vectors(labels, encode(sides(labels)).vectors, origin, brought=True) if labels else None,
        {
            "posted": len(file),
            "distinct": drawn.distinct,
            "vectors_sha256": drawn.sha256,
            "not_judged": ("out_of_domain", "recognition", *(() if texts else ("rawness",))),
        },
    )


def readable_labels(
    labels: Sequence[LabelledPair], encoder: EncoderArtifact, kind: str
) -> tuple[list[LabelledPair], dict[str, Any]]:
    """Distinct labelled pairs that can be used, and facts about the others.

    Pairs with an unreadable text are left out, and pairs of different texts that differ only in unknown words, because
    the service always answers a probability of 0 for them. So are pairs that are labelled both 0 and 1.

    Raises:
        InvalidInput: the remaining labels are not usable.
    """
    posted, left_out = len(labels), ""
    contradictions: dict[str, Any] = {}
    if kind == "matches":
        labels, contradictions = without_contradictions(labels)
        if contradictions:
            left_out = f" ({contradictions['pairs']:,} others are labelled both 0 and 1)"
    distinct = distinct_labels(labels)
    unknown = find_unknown(list({text for pair in distinct for text in pair[:2]}), encoder)

    def is_readable(pair: LabelledPair) -> bool:
        a, b = unknown.get(pair.a), unknown.get(pair.b)
        if (a is not None and a.unreadable) or (b is not None and b.unreadable):
            return False
        return pair.a == pair.b or a is None or b is None or not a.unknown_hash or a.unknown_hash != b.unknown_hash

    kept = [pair for pair in distinct if is_readable(pair)] if unknown else distinct
    unreadable = len(distinct) - len(kept)
    if posted:
        check_labels(kept, kind, left_out=left_out + besides(unreadable))
    return kept, {"posted": posted, "contradictions": contradictions, "unreadable": unreadable}


def sides(labels: Sequence[LabelledPair]) -> list[str]:
    """The distinct texts of labelled pairs. (T)"""
    return list(dict.fromkeys(text for pair in labels for text in pair[:2]))


def with_vectors(
    labels: Sequence[LabelledPair], vectors: Vectors, origin: Mapping[str, Any], *, brought: bool = False
) -> Labels:
    """The pairs with the vectors (T, D) of their `sides`. Raises InvalidInput if labels and similarities disagree."""
    row = {text: index for index, text in enumerate(sides(labels))}
    left, right = [row[pair.a] for pair in labels], [row[pair.b] for pair in labels]
    weights = np.array([pair.weight for pair in labels])
    weighted = weights if (weights != weights[0]).any() else None
    features = None if brought else pair_features(pair[:2] for pair in labels)
    values = np.array([pair.label for pair in labels])
    pairs = Labels(vectors[left], vectors[right], values, weighted, features, origin)
    agreement_of(pairs)
    return pairs


def agreement_of(labels: Labels) -> RankTest:
    """Compares labels with the encoder's similarities.

    Raises:
        InvalidInput: pairs with higher labels have significantly lower similarities.
    """
    test = RankTest.from_labels(cosine(labels.left, labels.right), labels.values)
    if test.p_disagree is not None and test.p_disagree < AGREEMENT_LEVEL:
        question = "are 0 and 1 swapped?" if test.kind == "auroc" else "is the scale upside down?"
        raise InvalidInput(
            f"labels_inverted: pairs with higher labels are less similar than others ({test}, one-sided p "
            f"{test.p_disagree:.1g}); {question} A match is 1, or the highest grade"
        )
    return test


def model_of(
    seed: int,
    fitted: FittedMap,
    sample: Sample,
    latents: Sequence[tuple[Vectors, Rows]],
    rng: np.random.Generator,
    distinct: int,
) -> DomainModel:
    """Builds a domain's references, false-hit tables, and, from enough distinct vectors, its out-of-domain test."""

    def scale(groups: Sequence[tuple[Vectors, Rows]]) -> tuple[ReferenceDistribution, FalseHitTable | None]:
        made = reference.build(reference.sample_pairs(groups, rng), rng)
        return made, false_hits.build(groups, made, np.random.default_rng(seed))

    raw, raw_hits = scale([(sample.vectors, np.arange(len(sample.vectors)))])
    own, own_hits = (raw, raw_hits) if fitted.weights is None else scale(latents)
    test = None
    if distinct >= out_of_domain.FEWEST and sample.tokens is not None:
        energies = flow_energies(fitted, latents)
        test = out_of_domain.fit(sample.vectors, sample.tokens, sample.shuffled, rng, energies)
    return DomainModel(own, raw, domain_test=test, false_hits=own_hits, raw_false_hits=raw_hits)


def flow_energies(fitted: FittedMap, latents: Sequence[tuple[Vectors, Rows]]) -> Doubles | None:
    """The log energies (N, L) of N sentences at the L levels of a flow, in the order of the sentences.

    An energy is the mean square of a level's channels, from the cross-fitted latents. None for linear methods, which
    have no levels.
    """
    if not fitted.method.is_flow:
        return None
    order = np.concatenate([rows for _, rows in latents])
    in_order: Vectors = np.concatenate([part for part, _ in latents])[np.argsort(order)]
    return level_energies(in_order, group_sizes(in_order.shape[1]))


def with_labels(
    model: DomainModel, fitted: FittedMap, labels: Labels, request: JobRequest
) -> tuple[DomainModel, LabelReport]:
    """The model with probabilities fitted to labelled pairs, and the report on the labels."""
    assert model.reference is not None  # noqa: S101 - labels of a version without one are refused when they are posted
    similarities = cosine(fitted(labels.left), fitted(labels.right))
    learnt, facts = probability.fit(
        similarities,
        model.reference,
        labels.values,
        request.seed,
        labels.weights,
        graded=request.kind == "grades",
    )
    better, tried = None, None
    if labels.features is not None and not learnt.graded and learnt.pairs >= FEWEST_LABELS:
        pairs = probability.LabelledScores.build(similarities, labels.values, labels.weights)
        x = evidence(model.reference.false_match_rate(pairs.similarities))
        better, tried = pair_map.fit(pairs, x, labels.features, request.seed)
    labelled = replace(model, probability=learnt, pair_map=better)
    table = operating_points(labelled)
    own = {"table": table, "pair_features": tried, **labels.origin}
    return labelled, LabelReport.build(facts, agreement_of(labels), **own)


def cross_fitted(
    fitted: FittedMap, vectors: Vectors, rng: np.random.Generator, progress: Progress
) -> Sequence[tuple[Vectors, Rows]]:
    """For each fold, the latents and indices of its sentences. The latents come from a map fitted to the other folds.

    Identity is not fitted, so all sentences form one fold. A flow is trained for as many steps as `fitted` was.
    """
    if fitted.weights is None:
        return [(vectors, np.arange(len(vectors)))]
    parts = reference.folds(len(vectors), FLOW_FOLDS if fitted.method.is_flow else FOLDS, rng)
    groups = []
    for number, part in enumerate(parts):
        rest = np.delete(vectors, part, axis=0)
        groups.append((fitted.refit(rest)(vectors[part]), part))
        progress((number + 1) / len(parts))
    return groups


def check_graph(fitted: FittedMap, encoder: EncoderArtifact, sample: Vectors) -> None:
    """Raises ArithmeticError if the exported calibrator and torch map a sample differently."""
    if fitted.weights is None:
        return
    graph = OnnxCalibrator(encoder.calibrator).bind(fitted.weights)
    expected, latents = fitted(sample[:256]), graph(sample[:256])
    scale = max(1.0, float(np.abs(expected).max()))
    worst = float(np.abs(expected - latents).max()) / scale
    if not worst <= 1e-4:
        raise ArithmeticError(f"the exported calibrator differs from the fitted one by {worst:.1e}")
