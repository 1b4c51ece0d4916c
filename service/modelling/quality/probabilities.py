"""Are probabilities learnt from labelled pairs right on other pairs? Quora's question pairs, over random draws."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.linear_model import LogisticRegression

from service.core.reference import ReferenceDistribution
from service.core.similarity import cosine
from service.modelling import gate, probability, reference
from service.modelling.job import cross_fitted
from service.modelling.methods import fit
from service.modelling.quality.sources import Encoder, Pairs, Progress, read_pairs
from service.modelling.reliability import calibration_error

Doubles = npt.NDArray[np.float64]

ECE_BARS = {100: 0.05, 1000: 0.03}  # labelled pairs: the largest mean expected calibration error
MATCH = 4.0  # grade from which an STS-B pair counts as a match, for the baseline


@dataclass(frozen=True)
class Result:
    """Held-out errors over draws of `pairs` labelled pairs, and those of a Platt curve taken over from STS-B."""

    pairs: int
    ece: list[float]
    brier: list[float]
    baseline_ece: float
    baseline_brier: float

    @property
    def kept(self) -> bool:
        return float(np.mean(self.ece)) <= ECE_BARS[self.pairs] and float(np.mean(self.brier)) < self.baseline_brier


def brier(predicted: Doubles, labels: Doubles) -> float:
    """Mean squared error of probabilities (Brier, 1950)."""
    return float(np.square(predicted - labels).mean())


def measure(data: Path, encode: Encoder, draws: int, progress: Progress) -> tuple[str, list[Result]]:
    """The domain is made from the pairs' own sentences without labels; then labels of some, tested on the rest."""
    quora, stsb = read_pairs(data / "pairs/quora.tsv"), read_pairs(data / "sts/stsb/train.tsv")
    texts, left, right = embedded(quora, encode, lambda done: progress("embedding", done))
    raw = cosine(left, right).astype(np.float64)
    _, stsb_left, stsb_right = embedded(stsb, encode, lambda done: progress("embedding", done))
    baseline = LogisticRegression(C=np.inf)
    baseline.fit(cosine(stsb_left, stsb_right)[:, None], stsb.gold >= MATCH)
    taken_over = baseline.predict_proba(raw[:, None])[:, 1]

    rng = np.random.default_rng(0)
    rows = {text: row for row, text in enumerate(texts)}
    vectors = np.empty((len(texts), left.shape[1]), np.float32)
    for side, found in ((quora.left, left), (quora.right, right)):
        vectors[[rows[text] for text in side]] = found
    method = gate.decide(texts, vectors).method
    fitted = fit(method, vectors, vectors[:0], 0)
    scale = reference.build(
        reference.sample_pairs(cross_fitted(fitted, vectors, rng, lambda _: None), rng), rng, intervals=False
    )
    similarities = cosine(fitted(left), fitted(right))
    results = []
    for count in ECE_BARS:
        found = [one_draw(similarities, scale, quora.gold, count, draw) for draw in range(draws)]
        ece, squares = ([value[at] for value in found] for at in (0, 1))
        base = calibration_error(taken_over, quora.gold), brier(taken_over, quora.gold)
        results.append(Result(count, ece, squares, *base))
        progress(f"{count} labels", 1.0)
    return method, results


def embedded(pairs: Pairs, encode: Encoder, progress: Callable[[float], None]) -> tuple[list[str], Any, Any]:
    texts = list(dict.fromkeys((*pairs.left, *pairs.right)))
    vectors, _ = encode(texts, progress)
    row = {text: index for index, text in enumerate(texts)}
    return texts, vectors[[row[t] for t in pairs.left]], vectors[[row[t] for t in pairs.right]]


def one_draw(
    similarities: npt.NDArray[np.float32], scale: ReferenceDistribution, labels: Doubles, count: int, seed: int
) -> tuple[float, float]:
    order = np.random.default_rng(seed).permutation(len(labels))
    seen, others = order[:count], order[count:]
    learnt, _ = probability.fit(similarities[seen], scale, labels[seen], seed)
    predicted = learnt.probability(scale.false_match_rate(similarities[others]))
    return calibration_error(predicted, labels[others]), brier(predicted, labels[others])
