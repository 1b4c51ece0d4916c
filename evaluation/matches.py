"""From texts to matching pairs: how often intervals of precision and recall hold, how many candidates are enough, and
whether searches with known answers give the rate of wrong hits that they promise. All with raw cosines."""

from collections.abc import Callable, Iterator

import numpy as np

from evaluation.corpora import Bench, PairVectors, Row
from isosim.arrays import Doubles, Floats
from isosim.matching.adjusting import by_similarity, by_words
from isosim.matching.candidates import BINS, Candidates, find
from isosim.matching.check import NONE, Searches, answer
from isosim.matching.drawing import draw
from isosim.matching.estimate import estimate
from isosim.scoring.pair_features import pair_features
from isosim.scoring.similarity import cosine, normalized

Labels = Callable[[np.random.Generator], Doubles]

# P(match | similarity) of simulated labels: steep; never above 0.85; and with few matches at low similarities
CURVES: dict[str, Callable[[Doubles], Doubles]] = {
    "steep": lambda s: 1 / (1 + np.exp(-30 * (s - 0.85))),
    "plateau": lambda s: 0.85 / (1 + np.exp(-25 * (s - 0.78))),
    "skewed": lambda s: 1 - np.exp(-np.exp(18 * (s - 0.88))),
}
JUDGED = "quora"  # the population of Quora's judged pairs, with their labels
WORDS = "quora-words"  # the same; from 100 judged pairs on, similarities are adjusted to the words of the texts
LABELS = (25, 50, 100, 200, 400)
ROUND = 50  # labels drawn at once
TARGETS: dict[str, float | None] = {
    "precision 0.7": 0.7,
    "precision 0.8": 0.8,
    "precision 0.9": 0.9,
    "fixed threshold": None,
}
PASSING = {JUDGED: 0.3, WORDS: 0.3}  # share of the candidates that pass the fixed threshold
COVERAGE_BAR = 0.9
WIDTH_BARS = {("precision", 100): 0.25, ("precision", 200): 0.2, ("recall", 100): 0.4, ("recall", 200): 0.3}
HELD = 0.999  # share of the matches that candidates should hold
QUERIES, NOMINAL, BOUNDS = (300, 1000), 0.01, (0.006, 0.014)


def matches(
    bench: Bench, population: str = ",".join((JUDGED, WORDS, *CURVES)), draws: int = 400, *, recall: int = 1
) -> Iterator[Row]:
    """Coverage and width of the intervals of precision and recall, with labels drawn in rounds around a target.

    The populations are Quora's 8,000 judged pairs, and the candidates of its questions with labels simulated from a
    curve, anew for every draw. `recall` 0: pairs are drawn for the precision alone.
    """
    for name in population.split(","):
        similarity, labels = simulated(bench, name) if name in CURVES else judged_pairs(bench)
        features = judged_features(bench) if name == WORDS else None
        for target in TARGETS:
            cells: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
            for seed in range(draws):
                for figure, count, *values in one_draw(
                    similarity, labels, features, target, PASSING.get(name, 0.02), seed, recall=bool(recall)
                ):
                    cells.setdefault((figure, count), []).append((values[0], values[1], values[2]))
            for (figure, count), found in cells.items():
                truth, low, high = np.array(found).T
                covered = float(((low - 1e-9 <= truth) & (truth <= high + 1e-9)).mean())
                width, bar = float(np.median(high - low)), WIDTH_BARS.get((figure, count), 1.0)
                yield {
                    "population": name, "target": target, "of the": figure, "labels": count,
                    "reached by, %": 100 * len(found) / draws, "covered, %": 100 * covered, "median width": width,
                    "mean": float(truth.mean()), "kept": covered >= COVERAGE_BAR and width <= bar,
                }  # fmt: skip


def judged_pairs(bench: Bench) -> tuple[Floats, Labels]:
    quora = PairVectors.from_pairs(bench.quora(), bench.encoder)
    similarity = cosine(quora.left, quora.right)
    order = np.argsort(-similarity, kind="stable")
    gold = quora.pairs.gold[order]
    return similarity[order], lambda rng: gold


def judged_features(bench: Bench) -> Doubles:
    quora = PairVectors.from_pairs(bench.quora(), bench.encoder)
    order = np.argsort(-cosine(quora.left, quora.right), kind="stable")
    return pair_features((quora.pairs.left[row], quora.pairs.right[row]) for row in order)


def simulated(bench: Bench, curve: str) -> tuple[Floats, Labels]:
    similarity = questions(bench).similarity
    chances = CURVES[curve](similarity.astype(np.float64))
    return similarity, lambda rng: (rng.random(len(chances)) < chances).astype(np.float64)


def questions(bench: Bench, per_text: int = 10) -> Candidates:
    quora = PairVectors.from_pairs(bench.quora(), bench.encoder)
    return find(normalized(quora.vectors), per_text=per_text)


def one_draw(
    similarity: Floats,
    labels: Labels,
    features: Doubles | None,
    target: str,
    passing: float,
    seed: int,
    *,
    recall: bool = True,
) -> Iterator[tuple[str, int, float, float, float]]:
    """For each number of labels that reaches the target: the true precision and recall, and their intervals."""
    truth = labels(np.random.default_rng(seed))
    fixed = float(similarity[int(len(truth) * passing)])
    precision = TARGETS[target]
    wanted = {"threshold": fixed} if precision is None else {"precision": precision}
    rows, ranking = np.empty(0, np.intp), by_similarity(similarity)
    for count in LABELS:
        while len(rows) < count:
            left = min(ROUND, count - len(rows))
            more = draw(ranking.similarity, ranking.place[rows], truth[rows], left, recall=recall, seed=seed, **wanted)
            rows = np.append(rows, ranking.order[more])
            if features is not None and precision is not None:
                ranking = by_words(similarity, features, rows, truth[rows].astype(np.intp), seed=seed)
        places, found = ranking.place[rows], np.cumsum(truth[ranking.order])
        learnt = estimate(ranking.similarity, places, truth[rows], unseen=ranking.unseen, seed=seed)
        threshold = fixed if precision is None else learnt.threshold_for(precision)
        if threshold is None:
            continue
        point, above = learnt.at(threshold), ranking.above(threshold)
        right = found[above - 1] + truth[rows[places >= above]].sum()  # judged pairs follow their labels
        if point.precision_interval and point.recall_interval:
            yield "precision", count, float(right / point.passing), *point.precision_interval
            yield "recall", count, float(right / found[-1]), *point.recall_interval


def match_candidates(bench: Bench, most: int = 100) -> Iterator[Row]:
    """How many candidates a text hold 99.9 % of the matches, if labels follow one of the simulated curves."""
    found = questions(bench, most)
    texts = 2 * len(found.similarity) / most
    middles = (np.arange(BINS) + 0.5) * 2 / BINS - 1
    for name, curve in CURVES.items():
        every = float(found.histogram @ curve(middles))  # of all pairs, by the histogram
        held = np.cumsum(curve(found.similarity.astype(np.float64))) / every
        enough = int(np.searchsorted(held, HELD))
        yield {
            "curve": name, "matches": every, "held by 10 a text, %": 100 * float(held[int(5 * texts) - 1]),
            "candidates a text for 99.9 %": 2 * (enough + 1) / texts if enough < len(held) else None,
            "floor of 10 a text": float(found.similarity[int(5 * texts) - 1]),
        }  # fmt: skip


def match_checks(bench: Bench, draws: int = 200) -> Iterator[Row]:
    """Wrong hits of further searches at the threshold that known searches give for 1 %, and coverage of the intervals.

    Queries are the first questions of Quora's judged pairs, without those that are in the gallery themselves; the
    gallery has the second questions of the duplicates. The draws are made with replacement, so that the rates of all
    queries are the true ones.
    """
    quora = PairVectors.from_pairs(bench.quora(), bench.encoder)
    same = quora.pairs.gold == 1
    entry: dict[str, int] = {}
    entries = [entry.setdefault(text, len(entry)) for text in np.array(quora.pairs.right)[same].tolist()]
    row = [quora.row[text] for text in entry]
    truth = np.full(len(same), NONE)
    truth[same] = entries
    every = answer(normalized(quora.left), normalized(quora.vectors[row]), truth)
    usable = np.array([text not in entry for text in quora.pairs.left])
    for kind, rows in (("no match", np.flatnonzero(usable & ~same)), ("any", np.flatnonzero(usable))):
        population = taken(every, rows, same)
        for count in QUERIES:
            rates, held = [], []
            for seed in range(draws):
                drawn = np.random.default_rng(seed).choice(rows, count)
                searches = taken(every, drawn, same)
                threshold = searches.threshold_for(NOMINAL)
                assert threshold is not None  # noqa: S101 - without a bound there is always a threshold
                known, real = searches.at(threshold), population.at(threshold)
                rates.append(real.wrong.share or 0.0)
                pairs = [(known.wrong, real.wrong), (known.found, real.found)]
                held.append([one.interval[0] <= (two.share or 0.0) <= one.interval[1] for one, two in pairs])
            wrong, found = (100 * np.mean(held, 0)).tolist()
            within = float(np.mean([BOUNDS[0] <= rate <= BOUNDS[1] for rate in rates]))
            yield {
                "queries": kind, "drawn": count, "wrong hits, %": [100 * rate for rate in rates],
                "draws within 0.6–1.4 %, %": 100 * within, "covered: wrong hits, %": wrong,
                "covered: found matches, %": found if kind == "any" else None,
                "queries for ± 0.4 %": population.needed(NOMINAL, 0.008),
                "kept": min(wrong, found if kind == "any" else wrong) >= 100 * COVERAGE_BAR
                and (count < max(QUERIES) or BOUNDS[0] <= float(np.mean(rates)) <= BOUNDS[1]),
            }  # fmt: skip


def taken(searches: Searches, rows: np.ndarray, same: np.ndarray) -> Searches:
    """The searches of some queries."""
    return Searches(searches.best[rows], searches.similarity[rows], searches.right[rows], int(same[rows].sum()))
