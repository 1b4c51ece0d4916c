"""A calibration from text to a version: embed, choose, fit, measure, publish."""

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from service.adapters.domain_store import DomainStore
from service.adapters.encoder_store import EncoderArtifact
from service.adapters.onnx_engine import OnnxCalibrator
from service.core.errors import Conflict, InvalidInput, IsosimError
from service.core.jobs import JobRequest
from service.core.reference import ReferenceDistribution
from service.modelling import gate, measure, reference
from service.modelling.embed import OfflineEncoder
from service.modelling.methods import Fitted, Vectors, bits_per_dimension, fit, gaussian_bits_per_dimension

Report = Callable[[str, float], None]  # stage, progress 0–1

EMBED_SHARE = 0.7  # of a job's progress bar
HELD_OUT = 0.1  # share of the sentences that the final fit does not see
MOST_HELD_OUT = 2000
FEWEST = 20  # sentences below which nothing can be held out
FOLDS = 10  # fits of the reference; 5 are 1.5 % too careful, 20 are noisier at 0.1 %
FLOW_FOLDS = 4  # a flow's fit costs a hundred times a linear one


@dataclass(frozen=True)
class Result:
    """Everything a version consists of, not yet published."""

    request: JobRequest
    encoder: EncoderArtifact
    fitted: Fitted
    reference: ReferenceDistribution
    held_out: Vectors
    report: dict[str, Any]

    def publish(self, domains: DomainStore) -> tuple[int, bool, str]:
        """Writes the version and promotes it if the request says so. -> version, promoted, why."""
        request = self.request
        manifest = {
            "method": self.fitted.method,
            "encoder": {"id": self.encoder.id, "digest": self.encoder.digest},
            "sentences": self.report["sentences"],
            "seed": request.seed,
        }
        expected = domains.aliases(request.domain, self.encoder.digest)
        promote, why = self._wanted(domains, expected.champion)
        report = {**self.report, "promotion": why}
        version = domains.publish(request.domain, manifest, report, self.fitted.weights, self.reference)
        for _ in range(5):
            if not promote:
                return version, False, why
            try:
                domains.promote(request.domain, self.encoder.digest, version, expected=expected)
            except Conflict:  # promotion is compare-and-set: whoever loses compares with the new champion
                expected = domains.aliases(request.domain, self.encoder.digest)
                promote, why = self._wanted(domains, expected.champion)
            else:
                return version, True, why
        return version, False, "other promotions kept winning"

    def _wanted(self, domains: DomainStore, champion: int | None) -> tuple[bool, str]:
        if self.request.promote != "if_better":
            return self.request.promote == "always", f"promote: {self.request.promote}"
        if champion is None:
            return True, "the domain had no champion"
        return self._compare(domains, champion)

    def _compare(self, domains: DomainStore, champion: int) -> tuple[bool, str]:
        """Does the champion's scale still hold on the new text, and does the challenger's hold better?

        Both are measured on the same held-out sentences, which neither map was fitted on. Of the challenger's
        reference they are a tenth, scored by maps that had not seen them.
        """
        try:
            stored = domains.load(self.request.domain, champion)
        except IsosimError as error:
            return True, f"the champion, version {champion}, cannot be read: {error}"
        if stored.reference is None:
            return True, f"the champion, version {champion}, has no reference"
        theirs = Fitted(stored.manifest["method"], stored.weights, {})
        numbers = np.arange(len(self.held_out))
        rng = np.random.default_rng(self.request.seed)

        def off_by(fitted: Fitted, scale: ReferenceDistribution) -> float:
            pairs = reference.sample_pairs([(fitted(self.held_out), numbers)], rng)
            return measure.threshold_error(scale.percentile(pairs.similarities))

        new, old = off_by(self.fitted, self.reference), off_by(theirs, stored.reference)
        what = (
            f"on {len(self.held_out)} new held-out sentences the false-match rate is off by a factor of "
            f"{np.exp(new):.3f} with this version and {np.exp(old):.3f} with version {champion}"
        )
        return new < old, what


def calibrate_job(
    request: JobRequest,
    texts: Iterable[str],
    encoder: EncoderArtifact,
    domains: DomainStore,
    report: Report,
    *,
    threads: int,
) -> Result:
    """Embeds the distinct texts, fits the method asked for and measures it. Nothing is written.

    Raises:
        InvalidInput: too few distinct sentences.
        FloatingPointError: the fit diverged.
    """
    started = time.monotonic()
    torch.set_num_threads(threads or torch.get_num_threads())
    posted = list(texts)
    distinct = list(dict.fromkeys(posted))
    if len(distinct) < FEWEST:
        raise InvalidInput(f"texts: {len(distinct)} distinct sentences, at least {FEWEST} are needed")
    report("embedding", 0.0)
    encode = OfflineEncoder(encoder, threads)
    vectors = encode(distinct, lambda done: report("embedding", EMBED_SHARE * done))
    embedded = time.monotonic()

    rng = np.random.default_rng(request.seed)
    order = rng.permutation(len(distinct))
    held = max(1, min(int(HELD_OUT * len(distinct)), MOST_HELD_OUT))
    held_out, train = vectors[order[:held]], vectors[order[held:]]
    choice = gate.choose(vectors) if request.method == "auto" else None
    method = choice.method if choice else request.method
    report("fitting", EMBED_SHARE)
    fitted = fit(
        method, train, held_out, request.seed, progress=lambda done: report("fitting", EMBED_SHARE + 0.1 * done)
    )
    check_graph(fitted, encoder, held_out)
    fitted_at = time.monotonic()

    report("measuring", EMBED_SHARE + 0.1)
    latents = cross_fitted(fitted, vectors, rng, lambda done: report("measuring", EMBED_SHARE + 0.1 + 0.15 * done))
    pairs = reference.sample_pairs(latents, rng)
    made = reference.build(pairs, rng)
    facts = {
        "method": method,
        "asked": request.method,
        "reason": choice.reason if choice else f"method {method} was asked for",
        "settings": fitted.settings,
        "seed": request.seed,
        "posted": len(posted),
        "sentences": len(distinct),
        "text_sha256": hashlib.sha256("\n".join(sorted(distinct)).encode()).hexdigest(),
        "fit_sentences": 0 if fitted.weights is None else len(train),
        "held_out_sentences": len(held_out),
        "before": measure.space(vectors if fitted.weights is None else held_out, rng),
        "after": measure.space(vectors if fitted.weights is None else fitted(held_out), rng),
        "bits_per_dimension": bits_per_dimension(fitted, held_out),
        "gaussian_bits_per_dimension": gaussian_bits_per_dimension(train, held_out),
        "reference": {
            "pairs": made.pairs,
            "folds": len(latents),
            "resolution": made.resolution,
            "tail_error": made.tail_error,
            "threshold_at_1_percent": made.threshold(0.01),
            "interval_at_1_percent": made.interval(0.01),
        },
        "duration_seconds": {
            "embedding": round(embedded - started, 3),
            "fitting": round(fitted_at - embedded, 3),
            "measuring": round(time.monotonic() - fitted_at, 3),
        },
    }
    return Result(request, encoder, fitted, made, held_out, facts)


def cross_fitted(
    fitted: Fitted, vectors: Vectors, rng: np.random.Generator, progress: Callable[[float], None]
) -> Sequence[tuple[Vectors, reference.Rows]]:
    """Latents of each fold by a map fitted without it, with the sentences' numbers.

    Identity learns nothing from the text: all of it is one fold. Flows take as many steps as the final fit did.
    """
    if fitted.weights is None:
        return [(vectors, np.arange(len(vectors)))]
    parts = reference.folds(len(vectors), FLOW_FOLDS if fitted.method.startswith("flow") else FOLDS, rng)
    groups = []
    for number, part in enumerate(parts):
        rest = np.delete(vectors, part, axis=0)
        groups.append((fitted.again(rest)(vectors[part]), part))
        progress((number + 1) / len(parts))
    return groups


def check_graph(fitted: Fitted, encoder: EncoderArtifact, sample: Vectors) -> None:
    """The exported calibrator gives what torch gives, before anybody is served by it."""
    if fitted.weights is None:
        return
    graph = OnnxCalibrator(encoder.calibrator, ["CPUExecutionProvider"]).bind(fitted.weights)
    expected, found = fitted(sample[:256]), graph(sample[:256])
    scale = max(1.0, float(np.abs(expected).max()))
    worst = float(np.abs(expected - found).max()) / scale
    if not worst <= 1e-4:
        raise ArithmeticError(f"the exported calibrator differs from the fitted one by {worst:.1e}")
