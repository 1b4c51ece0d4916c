"""Runs a calibration: embeds texts, chooses and fits a method, and evaluates the result for publication."""

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from isosim.arrays import Doubles, Rows, Vectors
from isosim.domains.store import DomainStore, StoredVersion
from isosim.encoders.onnx_engine import OnnxCalibrator
from isosim.encoders.store import EncoderArtifact
from isosim.errors import EncoderMismatch, InvalidInput
from isosim.fitting import (
    evidence,
    false_hits,
    gate,
    out_of_domain,
    probability,
    reference,
)
from isosim.fitting.calibrator import group_sizes
from isosim.fitting.candidates import Labels
from isosim.fitting.evidence import RankTest, noised, repeated
from isosim.fitting.linear import Spectrum, share_of_one
from isosim.fitting.methods import (
    FittedMap,
    bits_per_dimension,
    fit,
    gaussian_bits_per_dimension,
    is_flow,
)
from isosim.fitting.publication import Result
from isosim.fitting.recognition import Embed
from isosim.jobs.job import JobRequest, LabelledPair
from isosim.jobs.offline import BroughtItems, Sending, TextEncoder, find_unknown, find_unreadable, open_texts
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
from isosim.jobs.vector_files import NpyFile, draw_rows
from isosim.scoring.advice import operating_points
from isosim.scoring.calibration import DomainModel
from isosim.scoring.out_of_domain import level_energies
from isosim.scoring.reference import ReferenceDistribution
from isosim.scoring.similarity import cosine

Report = Callable[[str, float], None]  # stage, progress 0–1

EMBED_SHARE = 0.7  # progress of a job, 0–1, at the end of the embedding
HELD_OUT = 0.1  # share of the sentences that the final fit does not use
MOST_HELD_OUT = 2000
COPIES = 100  # number of noisy copies of sentences; the gate rejects whitening that makes them harder to find
# Folds of the reference distribution. With 5 folds, thresholds are 1.5 % too strict; with 20 folds, thresholds for a
# rate of 0.1 % are noisier.
FOLDS = 10
# Significance level of two one-sided tests: whether the labels agree with the encoder's similarities, and whether they
# disagree with them.
SURE = 0.01
SAME_VECTORS = "the encoder gives most sentences the same vector, so no method except identity can be fitted"
FLOW_FOLDS = 4  # number of folds for flows; fitting a flow takes a hundred times as long as fitting a linear method
MOST_GROUPS = 20  # largest number of groups of repeated texts in a report, and of lines per group


@dataclass(frozen=True)
class CalibrationInput:
    """Sentences and labelled pairs of a job.

    In a job with `vectors`, `texts` holds the text of each row or is empty. A labelled pair then consists of two row
    numbers or two base64 vectors.
    """

    texts: Iterable[str]
    labels: Sequence[LabelledPair] = ()
    vectors: NpyFile | None = None


@dataclass
class Clock:
    """Records how many seconds each stage took."""

    spent: dict[str, float] = field(default_factory=dict)
    _at: float = field(default_factory=time.monotonic)

    def lap(self, stage: str) -> None:
        now = time.monotonic()
        self.spent[stage] = round(now - self._at, 3)
        self._at = now


@dataclass(frozen=True)
class TextVectors:
    """Vectors (N, D) and numbers of tokens (N,) of the distinct texts; vectors of altered copies and of labelled pairs.

    In a job with vectors, `tokens`, `copies` and `shuffled` are None, and `texts` can be None.
    """

    texts: list[str] | None
    vectors: Vectors
    tokens: Rows | None
    copies: tuple[Rows, Vectors] | None  # row numbers (M,) of some texts, and vectors (M, D) of their noisy copies
    shuffled: Vectors | None  # vectors of copies with shuffled words
    labels: Labels | None


@dataclass(frozen=True)
class Sample:
    """The data to which the method is fitted, and facts about its origin for the report."""

    text_vectors: TextVectors
    lines: list[int]  # line in which each text first appears, or row of each vector, counted from 1
    facts: dict[str, Any]
    label_facts: dict[str, Any]


def calibrate_job(
    request: JobRequest,
    inputs: CalibrationInput,
    encoder: EncoderArtifact,
    domains: DomainStore,
    report: Report,
    *,
    threads: int,
    encode: TextEncoder | None = None,
    sending: Sending = lambda _: None,
) -> Result:
    """Embeds the distinct texts or a sample of them, fits the requested method and evaluates it; writes nothing.

    Args:
        encode: function to use for encoding instead of loading the encoder in this process.
        sending: called with the number of texts before they are sent to a remote encoder's server.

    Raises:
        InvalidInput: there are too few distinct sentences for the method, or the labels are not usable.
        FloatingPointError: the fit diverged.
    """
    torch.set_num_threads(threads or torch.get_num_threads())
    if threads:
        threadpool_limits(threads, "blas")  # not reset later, because this process ends with its job
    brought = encoder.kind == "vectors"
    if encode is None:
        encode = BroughtItems(encoder, inputs.vectors) if brought else open_texts(encoder, threads, sending=sending)
    if request.base is not None:
        return label_job(request, inputs.labels, encoder, domains, report, encode)
    clock = Clock()
    take = sample_vectors if brought else sample_texts
    sample = take(request, inputs, encoder, encode, report)
    # `sample_texts` has a generator of its own, for copies of texts. So this generator gives the same numbers for texts
    # as for their vectors.
    rng = np.random.default_rng([request.seed, len(sample.lines)])
    text_vectors = sample.text_vectors
    vectors = text_vectors.vectors
    direction_facts = {} if text_vectors.labels is None else check_direction(text_vectors.labels)
    repeats = repeated_facts(vectors, sample.lines)
    same = repeats["texts"] - repeats["vectors"] if repeats else 0
    check_vectors(request.method, encoder.spec.dim, len(vectors), len(vectors) - same)
    clock.lap("embedding")

    report("choosing", EMBED_SHARE)
    order = rng.permutation(len(vectors))
    held = max(1, min(int(HELD_OUT * len(vectors)), MOST_HELD_OUT))
    held_out, train = vectors[order[:held]], vectors[order[held:]]
    choice = None
    if request.method == "auto":
        embed_some = None if brought else lambda some: encode(some).vectors
        choice = chosen(text_vectors, embed_some, request.seed)
    # If at least three quarters of the vectors are equal, identity replaces the chosen method, because `cross_fitted`
    # could fail. `cross_fitted` fits the method without the vectors of one fold (for flows, a quarter of the vectors).
    # The fit fails if all remaining vectors are equal.
    if choice and share_of_one(vectors) >= 1 - 1 / FLOW_FOLDS:
        choice = replace(choice, method="identity", reason=f"{choice.reason}; {SAME_VECTORS}")
    method = choice.method if choice else request.method
    clock.lap("choosing")

    report("fitting", EMBED_SHARE + 0.05)
    spectrum = Spectrum.from_vectors(train)

    def fitting(done: float) -> None:
        report("fitting", EMBED_SHARE + 0.05 + 0.1 * done)

    fitted = fit(method, train, held_out, request.seed, progress=fitting, spectrum=spectrum)
    check_graph(fitted, encoder, held_out)
    fit_sentences = 0 if fitted.weights is None else len(train)
    del train  # frees 0.3 GB
    clock.lap("fitting")

    report("measuring", EMBED_SHARE + 0.15)
    latents = cross_fitted(fitted, vectors, rng, lambda done: report("measuring", EMBED_SHARE + 0.15 + 0.1 * done))
    model = model_of(request, fitted, text_vectors, latents, rng)
    facts = {
        "method": method,
        "asked": request.method,
        "reason": choice.reason if choice else f"method {method} was asked for",
        "evidence": choice.evidence if choice else None,
        "candidates": [asdict(candidate) for candidate in choice.candidates] if choice else [],
        "settings": fitted.settings,
        "seed": request.seed,
        "used": len(vectors),
        "sentences": len(vectors),
        **sample.facts,
        "fit_sentences": fit_sentences,
        "held_out_sentences": len(held_out),
        "before": evidence.space(vectors if fitted.weights is None else held_out, rng),
        "after": evidence.space(vectors if fitted.weights is None else fitted(held_out), rng),
        "bits_per_dimension": bits_per_dimension(fitted, held_out),
        "gaussian_bits_per_dimension": gaussian_bits_per_dimension(spectrum, held_out),
        "reference": reference_facts(model.reference, folds=len(latents)),
        "raw_reference": reference_facts(model.raw_reference, folds=1),
        "repeated": repeats,
        "domain_test": model.domain_test is not None,
        "labels": None,
    }
    if text_vectors.labels is not None:
        model, learnt = with_labels(model, fitted, text_vectors.labels, request)
        facts["labels"] = {**learnt, **direction_facts, "posted": len(inputs.labels), **sample.label_facts}
    clock.lap("measuring")
    return Result(request, encoder, fitted, model, held_out, {**facts, "duration_seconds": clock.spent})


def sample_texts(
    request: JobRequest,
    inputs: CalibrationInput,
    encoder: EncoderArtifact,
    encode: TextEncoder,
    report: Report,
) -> Sample:
    """Draws a sample of the distinct texts for the fit, and embeds it.

    Raises:
        InvalidInput: there are too few distinct sentences for the method, or the labels are not usable.
    """
    drawn = draw(inputs.texts, request.seed)
    lines = dict(zip(drawn.texts, drawn.lines, strict=True))
    distinct = drawn.texts
    blind = find_unreadable(distinct, encoder)
    check_readable(len(distinct), len(blind))
    distinct = [text for text in distinct if text not in blind] if blind else distinct
    check_sentences(request.method, encoder.spec.dim, len(distinct), unreadable=len(blind))
    labels, label_facts = readable_labels(inputs.labels, encoder, request.kind)
    rng = np.random.default_rng(request.seed)
    text_vectors = embed(distinct, labels, encode, rng, report, auto=request.method == "auto")
    facts: dict[str, Any] = {
        "posted": drawn.posted,
        "distinct": drawn.distinct,
        "text_sha256": hashlib.sha256("\n".join(sorted(distinct)).encode()).hexdigest(),
    }
    if blind:
        facts["unreadable"] = len(blind)  # number of distinct texts that are left out
    return Sample(text_vectors, [lines[text] for text in distinct], facts, label_facts)


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


def sample_vectors(
    request: JobRequest,
    inputs: CalibrationInput,
    encoder: EncoderArtifact,
    encode: TextEncoder,
    report: Report,
) -> Sample:
    """Draws a sample of the distinct vectors for the fit, with their texts if there are any.

    Raises:
        InvalidInput: vectors are missing, invalid or too few, texts are missing, or the labels are not usable.
    """
    file = inputs.vectors
    if file is None:
        raise InvalidInput(f"encoder {encoder.id} computes no vectors: send vectors, as .npy or in lines of JSON")
    report("embedding", 0.0)
    drawn = draw_rows(file, encoder.spec.dim, request.seed, unit=encoder.unit_vectors)
    check_sentences(request.method, encoder.spec.dim, len(drawn.rows), brought=True)
    wanted = set(drawn.rows.tolist())
    text_of = {row: text for row, text in enumerate(inputs.texts) if row in wanted}
    if text_of and len(text_of) < len(wanted):
        raise InvalidInput(
            f"{file.name}: {len(file):,} vectors but fewer texts; give one text for each vector, or no texts"
        )
    texts = [text_of[row] for row in drawn.rows.tolist()] if text_of else None
    labels, label_facts = readable_labels(inputs.labels, encoder, request.kind)
    sides = list(dict.fromkeys(side for pair in labels for side in pair[:2]))
    pairs = labelled_vectors(labels, sides, encode(sides).vectors) if labels else None
    facts = {
        "posted": len(file),
        "distinct": drawn.distinct,
        "vectors_sha256": drawn.sha256,
        "not_judged": {name: why for name, why in NOT_JUDGED.items() if texts is None or name != "rawness"},
    }
    text_vectors = TextVectors(texts, drawn.vectors, None, None, None, pairs)
    return Sample(text_vectors, (drawn.rows + 1).tolist(), facts, label_facts)


WITHOUT_TEXT = (
    "Without texts, isosim cannot test how much the vectors depend on the surface of sentences, "
    "so scores stay raw cosines."
)


def chosen(text_vectors: TextVectors, embed_some: Embed | None, seed: int) -> gate.Choice:
    """The method that the gate chooses; identity if there are no texts, because the gate needs them."""
    if text_vectors.texts is None:
        return gate.Choice("identity", WITHOUT_TEXT, {}, [])
    return gate.choose(
        text_vectors.texts,
        text_vectors.vectors,
        embed_some,
        copies=text_vectors.copies,
        labels=text_vectors.labels,
        seed=seed,
    )


def embed(
    texts: list[str],
    labels: Sequence[LabelledPair],
    encode: TextEncoder,
    rng: np.random.Generator,
    report: Report,
    *,
    auto: bool,
) -> TextVectors:
    """Embeds texts, altered copies and labelled pairs in one call.

    Noisy copies are made only if `auto` is set. Shuffled copies are made only if there are at least 1,000 texts.
    """
    rows, altered = noised(texts, COPIES, rng) if auto else (np.arange(0), [])
    enough = len(texts) >= out_of_domain.FEWEST
    shuffled = out_of_domain.shuffled_copies(texts, out_of_domain.SHUFFLED, rng) if enough else []
    pairs = list(dict.fromkeys(text for pair in labels for text in pair[:2]))
    report("embedding", 0.0)
    everything = [*texts, *altered, *shuffled, *pairs]
    encodings = encode(everything, lambda done: report("embedding", EMBED_SHARE * done))
    ends = np.cumsum([len(texts), len(altered), len(shuffled)])
    own, copies, salad, labelled = np.split(encodings.vectors, ends)
    return TextVectors(
        texts,
        own,
        encodings.tokens[: len(texts)],
        (rows, copies) if len(altered) else None,
        salad if len(shuffled) else None,
        labelled_vectors(labels, pairs, labelled) if labels else None,
    )


def readable_labels(
    labels: Sequence[LabelledPair], encoder: EncoderArtifact, kind: str
) -> tuple[list[LabelledPair], dict[str, Any]]:
    """Distinct labelled pairs whose texts the encoder can read, and facts about the pairs left out, for the report.

    Pairs with an unreadable text are left out, and pairs of different texts that differ only in unknown words, because
    the service always answers a probability of 0 for them. So are pairs that are labelled both 0 and 1.

    Raises:
        InvalidInput: the remaining labels are not usable.
    """
    facts: dict[str, Any] = {}
    left_out = ""
    if kind == "matches":
        labels, contradictions = without_contradictions(labels)
        if contradictions:
            facts["contradictions"] = contradictions
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
    if unreadable:
        facts["unreadable"] = unreadable
    if distinct or facts:
        check_labels(kept, kind, left_out=left_out + besides(unreadable))
    return kept, facts


def labelled_vectors(labels: Sequence[LabelledPair], texts: Sequence[str], vectors: Vectors) -> Labels:
    row = {text: index for index, text in enumerate(texts)}
    left, right = [row[pair.a] for pair in labels], [row[pair.b] for pair in labels]
    weights = np.array([pair.weight for pair in labels])
    weighted = weights if (weights != weights[0]).any() else None
    return Labels(vectors[left], vectors[right], np.array([pair.label for pair in labels]), weighted)


def check_direction(labels: Labels) -> dict[str, Any]:
    """Compares labels with the encoder's similarities, for the report.

    Returns the result of the comparison as `rank_test`, and a `notice` if labels and similarities do not clearly agree.

    Raises:
        InvalidInput: pairs with higher labels have significantly lower similarities.
    """
    test = RankTest.from_labels(cosine(labels.left, labels.right), labels.values)
    if test.p_disagree < SURE:
        question = "are 0 and 1 swapped?" if test.kind == "auroc" else "is the scale upside down?"
        raise InvalidInput(
            f"labels_inverted: pairs with higher labels are less similar than others ({test}, one-sided p "
            f"{test.p_disagree:.1g}); {question} A match is 1, or the highest grade"
        )
    facts: dict[str, Any] = {"rank_test": {"kind": test.kind, "value": test.value, "p": test.p_agree}}
    if not test.p_agree < SURE:
        facts["rank_test"]["p"] = None if np.isnan(test.p_agree) else test.p_agree
        facts["notice"] = (
            f"the labels do not clearly agree with the similarities ({test} over {len(labels.values)} pairs), so "
            "probabilities learnt from them may mean little; check the labels or send more of them"
        )
    return facts


def model_of(
    request: JobRequest,
    fitted: FittedMap,
    text_vectors: TextVectors,
    latents: Sequence[tuple[Vectors, Rows]],
    rng: np.random.Generator,
) -> DomainModel:
    """Builds a domain's references, false-hit tables and out-of-domain test."""
    every = np.arange(len(text_vectors.vectors))
    whole = [(text_vectors.vectors, every)]
    raw = reference.build(reference.sample_pairs(whole, rng), rng)
    own = raw if fitted.weights is None else reference.build(reference.sample_pairs(latents, rng), rng)
    raw_hits = false_hits.build(whole, raw, np.random.default_rng(request.seed))
    own_hits = raw_hits
    if fitted.weights is not None:
        own_hits = false_hits.build(latents, own, np.random.default_rng(request.seed))
    test = None
    enough = out_of_domain.distinct_vectors(text_vectors.vectors) >= out_of_domain.FEWEST
    if enough and text_vectors.tokens is not None:
        energies = flow_energies(fitted, latents)
        test = out_of_domain.fit(text_vectors.vectors, text_vectors.tokens, text_vectors.shuffled, rng, energies)
    return DomainModel(own, raw, None, test, own_hits, raw_hits)


def flow_energies(fitted: FittedMap, latents: Sequence[tuple[Vectors, Rows]]) -> Doubles | None:
    """The log energies (N, L) of N sentences at the L levels of a flow, in the order of the sentences.

    An energy is the mean square of a level's channels, from the cross-fitted latents. None for linear methods, which
    have no levels.
    """
    if not is_flow(fitted.method):
        return None
    order = np.concatenate([rows for _, rows in latents])
    in_order: Vectors = np.concatenate([part for part, _ in latents])[np.argsort(order)]
    return level_energies(in_order, group_sizes(in_order.shape[1]))


def label_job(
    request: JobRequest,
    labels: Sequence[LabelledPair],
    encoder: EncoderArtifact,
    domains: DomainStore,
    report: Report,
    encode: TextEncoder,
) -> Result:
    """Makes a copy of an existing version, with probabilities learnt from labels."""
    assert request.base is not None  # noqa: S101 - the caller checks this
    distinct, label_facts = readable_labels(labels, encoder, request.kind)
    stored: StoredVersion = domains.load(request.domain, request.base)
    if stored.version.encoder != encoder.digest:
        raise EncoderMismatch(f"version {request.base} of {request.domain!r} was made for another encoder")
    clock = Clock()
    texts = list(dict.fromkeys(text for pair in distinct for text in pair[:2]))
    report("embedding", 0.0)
    vectors = encode(texts, lambda done: report("embedding", EMBED_SHARE * done)).vectors
    clock.lap("embedding")
    report("measuring", EMBED_SHARE)
    pairs = labelled_vectors(distinct, texts, vectors)
    direction_facts = check_direction(pairs)
    fitted = FittedMap(stored.version.method, stored.weights, {})
    model, learnt = with_labels(stored.model, fitted, pairs, request)
    clock.lap("measuring")
    earlier = domains.report(request.domain, request.base)
    facts = {
        **earlier,
        "labels": {**learnt, **direction_facts, "posted": len(labels), **label_facts},
        "base": request.base,
        "duration_seconds": clock.spent,
    }
    return Result(request, encoder, fitted, model, vectors[:0], facts)


def with_labels(
    model: DomainModel, fitted: FittedMap, labels: Labels, request: JobRequest
) -> tuple[DomainModel, dict[str, Any]]:
    """The model with probabilities fitted to labelled pairs, and the report on the labels.

    If the model has probabilities from earlier labels, the report compares the two (see `probability.compare`).

    Raises:
        InvalidInput: there are too few pairs, all labels are equal, or the version has no reference.
    """
    if model.reference is None:
        raise InvalidInput("labels: the version has no reference distribution, and probabilities need one")
    learnt, facts = probability.fit(
        cosine(fitted(labels.left), fitted(labels.right)),
        model.reference,
        labels.values,
        request.seed,
        labels.weights,
        graded=request.kind == "grades",
        rival=model.probability,
    )
    labelled = replace(model, probability=learnt)
    return labelled, {**facts, "table": operating_points(labelled)}


def reference_facts(made: ReferenceDistribution | None, folds: int) -> dict[str, Any] | None:
    if made is None:
        return None
    return {
        "pairs": made.pairs,
        "folds": folds,
        "resolution": made.resolution,
        "tail_error": made.tail_error,
        "threshold_at_1_percent": made.threshold(0.01),
        "interval_at_1_percent": made.interval(0.01),
        "curve": made.curve(),
        **({"smallest_rate": made.smallest_rate, "ties": ties_of(made)} if len(made.tied) else {}),
    }


def ties_of(made: ReferenceDistribution) -> list[dict[str, float]]:
    """For each tie (many random pairs with equal similarities), the similarity and the tie's share of all pairs."""
    both = zip(made.tied.tolist(), made.tied_rates.tolist(), strict=True)
    return [{"similarity": similarity, "rate": rate} for similarity, rate in both]


def repeated_facts(vectors: Vectors, lines: Sequence[int]) -> dict[str, Any] | None:
    """Line numbers of distinct texts with the same vector, such as mails that begin alike and are truncated.

    Args:
        lines: line number of each vector's text, counted from 1; blank lines are not counted.
    """
    groups = repeated(vectors)
    if not groups:
        return None
    return {
        "texts": sum(map(len, groups)),
        "vectors": len(groups),
        "groups": [
            {"texts": len(rows), "lines": [lines[row] for row in rows[:MOST_GROUPS]]} for rows in groups[:MOST_GROUPS]
        ],
    }


def cross_fitted(
    fitted: FittedMap, vectors: Vectors, rng: np.random.Generator, progress: Callable[[float], None]
) -> Sequence[tuple[Vectors, Rows]]:
    """For each fold, the latents and indices of its sentences. The latents come from a map fitted to the other folds.

    Identity is not fitted, so all sentences form one fold. A flow is trained for as many steps as `fitted` was.
    """
    if fitted.weights is None:
        return [(vectors, np.arange(len(vectors)))]
    parts = reference.folds(len(vectors), FLOW_FOLDS if is_flow(fitted.method) else FOLDS, rng)
    groups = []
    for number, part in enumerate(parts):
        rest = np.delete(vectors, part, axis=0)
        groups.append((fitted.again(rest)(vectors[part]), part))
        progress((number + 1) / len(parts))
    return groups


def check_graph(fitted: FittedMap, encoder: EncoderArtifact, sample: Vectors) -> None:
    """Raises ArithmeticError if the exported calibrator and torch map a sample differently."""
    if fitted.weights is None:
        return
    graph = OnnxCalibrator(encoder.calibrator, ["CPUExecutionProvider"]).bind(fitted.weights)
    expected, latents = fitted(sample[:256]), graph(sample[:256])
    scale = max(1.0, float(np.abs(expected).max()))
    worst = float(np.abs(expected - latents).max()) / scale
    if not worst <= 1e-4:
        raise ArithmeticError(f"the exported calibrator differs from the fitted one by {worst:.1e}")
