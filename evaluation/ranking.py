"""What `auto`, fitted without labels, changes of the ranking on the seven STS sets."""

from collections.abc import Iterator

import numpy as np

from evaluation.corpora import Bench, Row
from isosim.fitting.methods import UNCHANGED, fit
from isosim.scoring.method import Method
from isosim.sts import Evaluation, sentences

WORST_ALLOWED = -1.0  # `auto` may lower Spearman × 100 of a set by at most 1
# If the best rival gains at least 3 points in the mean, the mean gain of `auto` must not be smaller than the rival's.
RAW = 3.0


def ranking(bench: Bench, encoders: str = "minilm", rivals: str = "tempered,flow", seed: int = 0) -> Iterator[Row]:
    """Change of Spearman × 100 against identity, by `auto` and other methods fitted to each set's own sentences."""
    for name in encoders.split(","):
        encoder = bench.encoder if name == bench.encoder.artifact.id else bench.other(name).encoder
        ready = Evaluation(encoder.artifact, bench.data / "sts", encoder.vectors)
        before: dict[str, float] = {}
        chosen: dict[str, Method] = {}
        methods = [Method.parse(name) for name in ("auto", *filter(None, rivals.split(",")))]
        changes: dict[str, dict[str, float]] = {str(method): {} for method in methods}
        for one, files in ready.sets.items():
            texts = list(dict.fromkeys(sentences(files)))
            before[one] = ready.score(one, UNCHANGED)[0]
            chosen[one] = ready.choose(texts)
            x = ready.rows(texts)
            for method in methods:
                auto = method.name == "auto"
                fitted = fit(chosen[one], x, x[:0], seed) if auto else ready.fit(method, texts, x, seed)
                changes[str(method)][one] = ready.score(one, fitted)[0] - before[one]
        yield {"encoder": name, "method": "identity", **before}
        for one, own in changes.items():
            means = {"mean": float(np.mean(list(own.values()))), "worst": min(own.values())}
            yield {"encoder": name, "method": one, **own, **means, "kept": one != "auto" or is_kept(changes)}
        yield {"encoder": name, "method": "chosen", **{one: str(method) for one, method in chosen.items()}}


def is_kept(changes: dict[str, dict[str, float]]) -> bool:
    """Whether `auto` loses at most 1 point on any set, and gains enough in the mean.

    Its mean change must be at least 0, and that of the best rival if that is 3 points or more. `changes`: method -> set
    -> change of Spearman × 100.
    """
    means = {method: float(np.mean(list(own.values()))) for method, own in changes.items()}
    auto = means.pop("auto")
    best = max(means.values(), default=0.0)
    return min(changes["auto"].values()) >= WORST_ALLOWED and auto >= (best if best >= RAW else 0.0)
