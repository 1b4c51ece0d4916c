"""Does `auto` ever make ranking worse? Spearman on the STS sets, per view of an encoder, against identity."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from service.modelling import gate
from service.modelling.methods import Fitted, fit
from service.modelling.quality.sts import Evaluation

WORST_ALLOWED = -1.0  # points of Spearman × 100 that no set may lose
RAW = 3.0  # points that a rival gains in the mean make a view raw: there `auto` has to gain as much


@dataclass(frozen=True)
class View:
    """Changes of Spearman × 100 against identity on each set, fitted on the set's own sentences without labels."""

    encoder: str
    identity: dict[str, float]
    chosen: dict[str, str]
    changes: dict[str, dict[str, float]]  # {method: {set: change}}, `auto` among them

    def mean(self, method: str) -> float:
        return float(np.mean(list(self.changes[method].values())))

    def worst(self, method: str) -> float:
        return min(self.changes[method].values())

    @property
    def best_rival(self) -> float:
        return max((self.mean(method) for method in self.changes if method != "auto"), default=0.0)

    @property
    def kept(self) -> bool:
        """No set worse, not worse in the mean, and on a raw view at least the mean of the better rival."""
        least = self.best_rival if self.best_rival >= RAW else 0.0
        return self.worst("auto") >= WORST_ALLOWED and self.mean("auto") >= least


def measure(
    evaluation: Evaluation, rivals: Sequence[str], progress: Callable[[str, float], None], seed: int = 0
) -> View:
    """One view: identity, `auto` without labels, and the rivals."""
    identity, chosen = {}, {}
    changes: dict[str, dict[str, float]] = {method: {} for method in ("auto", *rivals)}
    for done, name in enumerate(evaluation.sets):
        identity[name] = evaluation.score(name, Fitted("identity", None, {}))[0]
        texts, vectors = evaluation.own_sentences(name)
        chosen[name] = gate.decide(texts, vectors).method
        fits = {"auto": fit(chosen[name], vectors, vectors[:0], seed)}
        fits |= {rival: evaluation.fit(rival, texts, vectors, seed) for rival in rivals}
        for method, fitted in fits.items():
            changes[method][name] = evaluation.score(name, fitted)[0] - identity[name]
        progress(name, (done + 1) / len(evaluation.sets))
    return View(evaluation.encode.artifact.id, identity, chosen, changes)
