"""What labelled pairs teach: errors of probabilities, and how often intervals of recall and precision hold (Quora)."""

from collections.abc import Iterator

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components
from sklearn.linear_model import LogisticRegression

from evaluation.calibrated import calibrated, within
from evaluation.corpora import Bench, PairVectors, Row
from isosim.arrays import Doubles, Rows
from isosim.fitting import probability
from isosim.jobs.labelled_pairs import Pairs, read_pairs
from isosim.scoring.similarity import cosine

ECE_BARS = {100: 0.05, 1000: 0.03}  # number of labels -> promised maximum of the mean expected calibration error
DOMAIN_PAIRS = 2000  # minimum number of pairs for a calibration, which uses one sentence of each pair
MATCH = 4.0  # the baseline counts STS-B pairs of at least this grade as matches


def probabilities(bench: Bench, draws: int = 100) -> Iterator[Row]:
    """Errors of probabilities learnt from labelled pairs, on pairs that share no sentence with them.

    Each draw makes a domain from one sentence of each of 2,000 pairs (with both, too many of the random pairs would be
    similar) and learns from the labels of some of them. The baseline is a Platt curve on raw cosines, fitted to STS-B.
    """
    quora, stsb = bench.quora(), read_pairs(bench.data / "sts/stsb/train.tsv")
    own, other = (PairVectors.from_pairs(pairs, bench.encoder) for pairs in (quora, stsb))
    baseline = LogisticRegression(C=np.inf)
    baseline.fit(cosine(other.left, other.right)[:, None], stsb.gold >= MATCH)
    taken_over = baseline.predict_proba(cosine(own.left, own.right)[:, None])[:, 1]
    group = groups(quora)
    for count, bar in ECE_BARS.items():
        errors = np.array([one_draw(bench, own, group, taken_over, count, seed) for seed in range(draws)])
        ece, brier, base_ece, base_brier = errors.T.tolist()
        yield {
            "labels": count, "calibration error": ece, "bar": bar, "Brier": brier,
            "from STS-B: calibration error": float(np.mean(base_ece)), "from STS-B: Brier": float(np.mean(base_brier)),
            "kept": bool(np.mean(ece) <= bar and np.mean(brier) < np.mean(base_brier)),
        }  # fmt: skip


def groups(pairs: Pairs) -> Rows:
    """Group number of each pair (P,). Pairs with a common sentence have the same group number."""
    row: dict[str, int] = {}
    left, right = (np.array([row.setdefault(text, len(row)) for text in side]) for side in (pairs.left, pairs.right))
    edges = csr_matrix((np.ones(len(left)), (left, right)), shape=(len(row), len(row)))
    numbers: Rows = connected_components(edges, directed=False)[1][left].astype(np.intp)
    return numbers


def one_draw(
    bench: Bench, own: PairVectors, group: Rows, taken_over: Doubles, count: int, seed: int
) -> tuple[float, float, float, float]:
    """ECE and Brier score after learning from `count` labels, and those of the baseline's probabilities (P,)."""
    rng = np.random.default_rng(seed)
    # Pairs sorted by group, with the groups in random order; no group is divided.
    place = np.argsort(rng.permutation(group.max() + 1)[group], kind="stable")
    size = DOMAIN_PAIRS
    while size < len(place) and group[place[size]] == group[place[size - 1]]:
        size += 1
    mine, others = place[:size], place[size:]
    seen = rng.permutation(mine)[:count]
    sides = own.pairs.left, own.pairs.right
    texts = list(dict.fromkeys(sides[rng.integers(2)][row] for row in mine))
    made = calibrated(texts, own.vectors[[own.row[text] for text in texts]], bench.encoder.vectors, rng)
    similarities = cosine(made.fitted(own.left), made.fitted(own.right))
    learnt, _ = probability.fit(similarities[seen], made.scale, own.pairs.gold[seen], seed)
    predicted = learnt.probability(made.scale.false_match_rate(similarities[others]))
    return (*errors(predicted, own.pairs.gold[others]), *errors(taken_over[others], own.pairs.gold[others]))


def calibration_error(probabilities: Doubles, targets: Doubles) -> float:
    """Expected calibration error over bins of equal numbers of pairs (Nixon et al., 2019, section 3). Arrays: (N,)."""
    bins = probability.equal_mass_bins(probabilities, targets, probability.BINS, np.ones(len(targets)))
    predicted, observed, _, mass = bins
    return float(mass @ np.abs(predicted - observed) / mass.sum())


def errors(predicted: Doubles, labels: Doubles) -> tuple[float, float]:
    """Expected calibration error, and mean squared error (Brier, 1950)."""
    return calibration_error(predicted, labels), float(np.square(predicted - labels).mean())


PRECISIONS = (0.6, 0.7, 0.8, 0.9)
DOMAIN_SENTENCES = 2000
# Pairs with high scores are drawn more often, as if people labelled the top hits first: the pair with the lowest score
# has 0.2 times the chance of the pair with the highest score.
LEAST_CHANCE = 0.2
COVERAGE_BARS = (0.90, 0.97)  # promised share of the 95 % intervals that contain the true value


def recall(bench: Bench, draws: int = 200) -> Iterator[Row]:
    """How often the 95 % intervals of recall and precision at an advised threshold contain those of all pairs."""
    quora = PairVectors.from_pairs(bench.quora(), bench.encoder)
    rng, gold, texts = np.random.default_rng(0), quora.pairs.gold, list(quora.row)
    mine = rng.permutation(len(texts))[:DOMAIN_SENTENCES]
    made = calibrated([texts[row] for row in mine], quora.vectors[mine], bench.encoder.vectors, rng)
    similarities = cosine(made.fitted(quora.left), made.fitted(quora.right))
    place = np.argsort(np.argsort(similarities)) / len(similarities)
    drawn = {"evenly": np.ones(len(place)), "by score, with weights": LEAST_CHANCE + (1 - LEAST_CHANCE) * place}
    for labels in ECE_BARS:
        for how, chances in drawn.items():
            found: dict[tuple[str, float], list[tuple[bool, float]]] = {}
            for draw in range(draws):
                seen = np.random.default_rng(draw).choice(len(place), labels, replace=False, p=chances / chances.sum())
                learnt, _ = probability.fit(similarities[seen], made.scale, gold[seen], draw, 1 / chances[seen])
                for at, precision in enumerate(learnt.precisions.tolist()):
                    above = similarities >= learnt.thresholds[at]
                    for figure, truth, low, high in (
                        ("recall", gold[above].sum() / gold.sum(), learnt.recall_low[at], learnt.recall_high[at]),
                        ("precision", gold[above].mean(), learnt.precision_low[at], learnt.precision_high[at]),
                    ):
                        one = bool(low <= truth <= high), float(high - low)
                        found.setdefault((figure, round(precision, 3)), []).append(one)
            for (figure, precision), intervals in found.items():
                if precision not in PRECISIONS:
                    continue
                covered, width = np.mean(intervals, axis=0).tolist()
                yield {
                    "of the": figure, "labels": labels, "drawn": how, "precision": precision,
                    "reached by": len(intervals), "covered, %": 100 * covered, "mean width": width,
                    "kept": within([covered], COVERAGE_BARS) == 1,
                }  # fmt: skip
