"""What the words of a pair add to the similarity: what labels teach with them, and what the flags see."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score

from evaluation.calibrated import calibrated, random_splits
from evaluation.corpora import Bench, PairVectors, Row
from evaluation.labels import calibration_error
from isosim.arrays import Doubles
from isosim.fitting import pair_map, probability
from isosim.jobs.labelled_pairs import Pairs, read_pairs
from isosim.matching.adjusting import by_words
from isosim.scoring.pair_features import FEWEST_LABELS, FLAGS, PairFeatures, pair_features
from isosim.scoring.probability import evidence
from isosim.scoring.reference import ReferenceDistribution
from isosim.scoring.similarity import cosine

# Set -> its files, and the lowest grade of a match
SETS = {"quora": ("pairs/quora.tsv", 1.0), "STS-B": ("sts/stsb/*.tsv", 4.0), "SICK": ("sts/sick/*.tsv", 4.2)}
LABELS = (50, 100, 300, 1000)
DOMAIN, UNSEEN = 3000, 4000  # texts of a calibration, and pairs on which a draw is judged
BARS = {"mean at 300": 0.8, "worst mean": -0.1}  # promised change of AUC × 100
DUPLICATES, ALARMS = 2000, 0.02  # true duplicates, and the largest promised share of them with a flag
TRAPS = Path(__file__).with_name("traps.tsv")


def read(bench: Bench, name: str) -> tuple[Pairs, Doubles]:
    """The pairs of a set, and whether each is a match, 1 or 0."""
    pattern, least = SETS[name]
    files = [read_pairs(path) for path in sorted(bench.data.glob(pattern))]
    left, right = ([text for pairs in files for text in getattr(pairs, side)] for side in ("left", "right"))
    pairs = Pairs(left, right, np.concatenate([pairs.gold for pairs in files]))
    return pairs, (pairs.gold >= least).astype(np.float64)


def learnt(bench: Bench, draws: int = 30) -> Iterator[Row]:
    """AUC, average precision and ECE on unseen pairs after learning from labels, with and without features.

    Where the test does not choose the map with features, or there are fewer than 100 labels, nothing changes.
    """
    changes: dict[int, list[float]] = {}
    for name in SETS:
        gold, similarity, scale, features = scored(bench, name)
        rates = scale.false_match_rate(similarity)
        x = evidence(rates)
        for count in LABELS:
            found = []
            for rng, seen, rest in random_splits(len(gold), count, draws):
                others, seed = rest[:UNSEEN], int(rng.integers(2**31))
                labelled = probability.LabelledScores.build(similarity[seen], gold[seen])
                local = probability.within_scores(x[seen], labelled.weights)
                alone = probability.bending_line(x[seen], labelled.targets, local)(x[others])
                better = None
                if count >= FEWEST_LABELS:
                    better, _ = pair_map.fit(labelled, x[seen], features[seen], seed)
                both = alone if better is None else better.probability(rates[others], features[others])
                before = figures(x[others], alone, gold[others])
                after = before if better is None else figures(both, both, gold[others])
                found.append([*before, *after, better is not None])
            auc, precision, ece, auc_after, precision_after, ece_after, used = np.mean(found, 0).tolist()
            worst = 100 * float(min(row[3] - row[0] for row in found))
            changes.setdefault(count, []).append(100 * (auc_after - auc))
            yield {
                "set": name, "labels": count, "AUC × 100": 100 * auc, "change": changes[count][-1], "worst draw": worst,
                "average precision × 100": 100 * precision, "its change": 100 * (precision_after - precision),
                "ECE": ece, "ECE with": ece_after, "used": used,
                "kept": bool(changes[count][-1] >= BARS["worst mean"] and ece_after <= ece),
            }  # fmt: skip
    mean = float(np.mean(changes[300]))
    yield {"set": "mean", "labels": 300, "change": mean, "kept": mean >= BARS["mean at 300"]}


def scored(bench: Bench, name: str) -> tuple[Doubles, Doubles, ReferenceDistribution, Doubles]:
    """Whether each pair of a set is a match, its similarity, the scale of the calibrated domain, and its features."""
    pairs, gold = read(bench, name)
    own = PairVectors.from_pairs(pairs, bench.encoder)
    rng = np.random.default_rng(0)
    texts = [list(own.row)[row] for row in rng.permutation(len(own.row))[:DOMAIN]]
    made = calibrated(texts, own.vectors[[own.row[text] for text in texts]], bench.encoder.vectors, rng)
    similarity = cosine(made.fitted(own.left), made.fitted(own.right)).astype(np.float64)
    return gold, similarity, made.scale, pair_features(zip(pairs.left, pairs.right, strict=True))


def precisions(bench: Bench, draws: int = 30) -> Iterator[Row]:
    """Precision and recall on unseen pairs at thresholds for a precision: a similarity, and with texts a probability.

    Only draws in which the map with features is used and both reach the precision.
    """
    for name in SETS:
        gold, similarity, scale, features = scored(bench, name)
        rates = scale.false_match_rate(similarity)
        for count in (300, 1000):
            found: dict[float, list[list[float]]] = {precision: [] for precision in (0.8, 0.9)}
            for rng, seen, rest in random_splits(len(gold), count, draws):
                others, seed = rest[:UNSEEN], int(rng.integers(2**31))
                labelled = probability.LabelledScores.build(similarity[seen], gold[seen])
                better, _ = pair_map.fit(labelled, evidence(rates[seen]), features[seen], seed)
                if better is None:
                    continue
                alone, _ = probability.fit(similarity[seen], scale, gold[seen], seed)
                served = better.probability(rates[others], features[others])
                for precision, rows in found.items():
                    if min(alone.precisions.max(initial=0), better.curve.precisions.max(initial=0)) >= precision:
                        row: list[float] = []
                        for scores, learnt in ((similarity[others], alone), (served, better.curve)):
                            passing = scores >= learnt.precision_threshold(precision)[0]
                            right = gold[others][passing].sum()
                            observed, (low, high) = right / passing.sum(), learnt.precision_interval(precision)
                            row += [observed, right / gold[others].sum(), low <= observed <= high]
                        rows.append(row)
            for precision, rows in found.items():
                means = np.mean(rows, 0).tolist() if rows else [np.nan] * 6
                names = ("precision", "recall", "inside its interval", "with texts", "its recall", "its inside")
                yield {"set": name, "labels": count, "target": precision, "draws": len(rows),
                       **dict(zip(names, means, strict=True))}  # fmt: skip


def orders(bench: Bench, draws: int = 30, precision: float = 0.8) -> Iterator[Row]:
    """Matches of a domain whose labels taught the words, without judgements of their own: the largest recall at an
    observed precision, by similarity and by the adjusted similarity. Only draws in which the map is used."""
    for name in SETS:
        gold, similarity, scale, features = scored(bench, name)
        x, none, found = evidence(scale.false_match_rate(similarity)), np.empty(0, np.intp), []
        for rng, seen, rest in random_splits(len(gold), 300, draws):
            labelled = probability.LabelledScores.build(similarity[seen], gold[seen])
            learnt, _ = pair_map.fit(labelled, x[seen], features[seen], int(rng.integers(2**31)))
            if learnt is not None:
                others = rest[:UNSEEN][np.argsort(-similarity[rest[:UNSEEN]], kind="stable")]
                ranking = by_words(similarity[others], features[others], none, none, known=learnt.moves)
                truth = gold[others]
                found.append([recall_at(truth, precision), recall_at(truth[ranking.order], precision)])
        before, after = (100 * np.mean(found, 0)).tolist()
        yield {"set": name, "draws": len(found), "recall by similarity, %": before, "adjusted, %": after}


def recall_at(truth: Doubles, precision: float) -> float:
    """Share of the matches in the longest beginning of a ranking with this precision. (N,)"""
    found = np.cumsum(truth)
    reached = np.flatnonzero(found >= precision * np.arange(1, len(truth) + 1))
    return float(found[reached[-1]] / found[-1]) if len(reached) else 0.0


def figures(ranks: Doubles, chances: Doubles, gold: Doubles) -> tuple[float, float, float]:
    """AUC, average precision and expected calibration error."""
    return (
        float(roc_auc_score(gold, ranks)),
        float(average_precision_score(gold, ranks)),
        calibration_error(chances, gold),
    )


def flags(bench: Bench) -> Iterator[Row]:
    """How many of 200 hand-made traps the flags see, and how many true duplicates they are raised for."""
    seen: Counter[tuple[str, str, str]] = Counter()
    for line in TRAPS.read_text().splitlines()[1:]:
        language, kind, a, b = line.split("\t")
        seen[language, kind, "pairs"] += 1
        for flag, value in zip(FLAGS, PairFeatures.of(a, b).flags, strict=True):
            seen[language, kind, flag] += value
    for language, kind in dict.fromkeys(key[:2] for key in seen):
        counts = {name: seen[language, kind, name] for name in ("pairs", *FLAGS)}
        yield {"texts": f"traps, {language}", "kind": kind, **counts}
    for name in SETS:
        pairs, gold = read(bench, name)
        matches = np.random.default_rng(0).permutation(np.flatnonzero(gold))[:DUPLICATES]
        raised = pair_features((pairs.left[row], pairs.right[row]) for row in matches)[:, -2:]
        any_share = float(raised.any(1).mean())
        # SICK's grades are of relatedness: "A man is mowing a lawn" and "A man is not mowing a lawn" have 4.4.
        kept = {"kept": any_share <= ALARMS} if name != "SICK" else {}
        counts = dict(zip(("pairs", *FLAGS), (len(matches), *raised.sum(0).astype(int).tolist()), strict=True))
        yield {"texts": name, "kind": "matches", **counts, "with a flag, %": 100 * any_share, **kept}
