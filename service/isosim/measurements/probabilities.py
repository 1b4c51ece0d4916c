"""Measures errors of probabilities that are learnt from random draws of labelled Quora pairs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components
from sklearn.linear_model import LogisticRegression

from isosim.arrays import Doubles
from isosim.fitting import gate, probability, reference
from isosim.fitting.job import cross_fitted
from isosim.fitting.methods import fit
from isosim.fitting.probability import calibration_error
from isosim.fitting.recognition import Embed
from isosim.jobs.labelled_pairs import Pairs, read_pairs
from isosim.measurements.sources import Encoder, PairVectors, Progress, quora_pairs
from isosim.scoring.similarity import cosine

ECE_BARS = {100: 0.05, 1000: 0.03}  # number of labels -> promised maximum of the mean expected calibration error
DOMAIN_PAIRS = 2000  # minimum number of pairs for a calibration, which uses one sentence of each pair
MATCH = 4.0  # the baseline counts STS-B pairs of at least this grade as matches


@dataclass(frozen=True)
class Result:
    """Errors on held-out pairs after learning from `pairs` labelled pairs, one value per draw.

    The baseline learns nothing from these pairs: it is a Platt curve that was fitted to STS-B. `baseline_ece` and
    `baseline_brier` are means over the draws.
    """

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
    """Measures the errors of probabilities on Quora pairs; returns the chosen methods and the results.

    Each draw divides the pairs into two parts that share no sentence. The first part gives the domain's sentences and
    the labels to learn from; the errors are measured on the second part. The calibration uses only one sentence of each
    pair, because with both sentences, too many of the reference's random pairs would be similar.
    """
    quora, stsb = quora_pairs(data), read_pairs(data / "sts/stsb/train.tsv")
    own = PairVectors.from_pairs(quora, lambda texts: encode(texts, lambda done: progress("quora", done)))
    other = PairVectors.from_pairs(stsb, lambda texts: encode(texts, lambda done: progress("STS-B", done)))
    baseline = LogisticRegression(C=np.inf)
    baseline.fit(cosine(other.left, other.right)[:, None], stsb.gold >= MATCH)
    taken_over = baseline.predict_proba(cosine(own.left, own.right)[:, None])[:, 1]
    group = groups(quora)
    chosen: set[str] = set()
    results = []
    for count in ECE_BARS:
        errors_by_draw = []
        for draw in range(draws):
            method, *errors = one_draw(own, encode.vectors, group, taken_over, count, draw)
            chosen.add(method.partition(":")[0])
            errors_by_draw.append(errors)
            progress(f"{count} labels", (draw + 1) / draws)
        ece, squares, base_ece, base_squares = (list(column) for column in zip(*errors_by_draw, strict=True))
        results.append(Result(count, ece, squares, float(np.mean(base_ece)), float(np.mean(base_squares))))
    return ", ".join(sorted(chosen)), results


def groups(pairs: Pairs) -> npt.NDArray[np.intp]:
    """Group number of each pair (P,). Pairs with a common sentence have the same group number."""
    row: dict[str, int] = {}
    left, right = (np.array([row.setdefault(t, len(row)) for t in side]) for side in (pairs.left, pairs.right))
    edges: Any = csr_matrix((np.ones(len(left)), (left, right)), shape=(len(row), len(row)))
    component: npt.NDArray[np.intp] = connected_components(edges, directed=False)[1].astype(np.intp)
    numbers: npt.NDArray[np.intp] = component[left]
    return numbers


def one_draw(
    own: PairVectors,
    embed: Embed,
    group: npt.NDArray[np.intp],
    taken_over: Doubles,
    count: int,
    seed: int,
) -> tuple[str, float, float, float, float]:
    """Learns from `count` labelled pairs, and measures errors on held-out pairs.

    Returns the method that `gate.decide` chose, ECE and Brier score, and the baseline's ECE and Brier score.
    `taken_over` (P,) holds the baseline's probabilities.
    """
    rng = np.random.default_rng(seed)
    # Pairs sorted by group, with the groups in random order.
    place = np.argsort(rng.permutation(group.max() + 1)[group], kind="stable")
    size = DOMAIN_PAIRS
    while size < len(place) and group[place[size]] == group[place[size - 1]]:
        size += 1
    mine, others = place[:size], place[size:]
    seen = rng.permutation(mine)[:count]
    sides = (own.pairs.left, own.pairs.right)
    texts = list(dict.fromkeys(sides[rng.integers(2)][row] for row in mine))
    known = {text: row for row, text in enumerate(own.texts)}
    vectors = own.vectors[[known[text] for text in texts]]
    method = gate.decide(texts, vectors, embed).method
    fitted = fit(method, vectors, vectors[:0], 0)
    latents = cross_fitted(fitted, vectors, rng, lambda _: None)
    scale = reference.build(reference.sample_pairs(latents, rng), rng, intervals=False)
    similarities = cosine(fitted(own.left), fitted(own.right))
    learnt, _ = probability.fit(similarities[seen], scale, own.pairs.gold[seen], seed)
    predicted = learnt.probability(scale.false_match_rate(similarities[others]))
    labels, base = own.pairs.gold[others], taken_over[others]
    return (
        method,
        calibration_error(predicted, labels),
        brier(predicted, labels),
        calibration_error(base, labels),
        brier(base, labels),
    )
