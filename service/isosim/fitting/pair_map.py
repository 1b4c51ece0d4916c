"""Learns the probability of a match from a pair's similarity and its features (`scoring/pair_features.py`).

A penalized logistic regression says how far each feature moves the evidence; a curve along the moved evidence then
gives the probability. The map is used only if it predicts held-out labels better than the similarity alone.
"""

from dataclasses import replace
from functools import partial

import numpy as np

from isosim.arrays import Doubles
from isosim.fitting import probability
from isosim.fitting.probability import Comparison, Curve, LabelledScores
from isosim.scoring.pair_features import SURE, PairMap, moves
from isosim.scoring.probability import parts, read_curve

REPEATS = 4  # divisions into folds: one alone decides by chance more often (evaluation/results/pair-features.md)


def fit(pairs: LabelledScores, x: Doubles, features: Doubles, seed: int) -> tuple[PairMap | None, Comparison]:
    """Fits a map to pairs with the evidence x (M,) and features (M, F), and compares it with the similarity alone.

    Both maps are fitted five times without a fifth of the pairs, in REPEATS divisions. The one with features is used if
    its log-loss on the left-out pairs is lower by more than SURE standard errors of the paired difference; otherwise
    the map is None.
    """
    targets, local = pairs.targets, probability.within_scores(x, pairs.weights)
    repeats = [folded(pairs, x, features, local, seed + repeat) for repeat in range(REPEATS)]
    compared = Comparison(*np.mean([(one.loss, one.rival_loss, one.standard_error) for one in repeats], 0).tolist())
    if not compared.rival_loss - compared.loss > SURE * compared.standard_error:
        return None, compared
    move, moved, curve = moved_curve(x, features, targets, local)
    learnt = probability.stored(pairs, moved, curve)
    # The thresholds of the table are probabilities as they are served, which come from the stored curve.
    served = partial(read_curve, knots=learnt.knots, logits=learnt.logits, clip=learnt.clip)
    by_probability = replace(pairs, similarities=served(moved))
    learnt = probability.with_precisions(learnt, by_probability, moved, served, np.random.default_rng(seed))
    return PairMap(features.mean(0), move, learnt), compared


def folded(pairs: LabelledScores, x: Doubles, features: Doubles, weights: Doubles, seed: int) -> Comparison:
    """Compares both maps on pairs that they were fitted without, in one division."""
    targets, held_out = pairs.targets, np.empty(len(x))
    for train, test in parts(targets, np.random.default_rng(seed)):
        move, _, curve = moved_curve(x[train], features[train], targets[train], weights[train])
        held_out[test] = curve(x[test] + (features[test] - features[train].mean(0)) @ move)
    alone = probability.out_of_fold(x, targets, weights, np.random.default_rng(seed))  # the same folds
    return probability.compare(pairs, held_out, alone)


def moved_curve(x: Doubles, features: Doubles, targets: Doubles, weights: Doubles) -> tuple[Doubles, Doubles, Curve]:
    """How far features move the evidence, the moved evidence, and the curve along it. (M,), (M, F), (M,), (M,)"""
    move = moves(x, features, targets, weights)
    moved = x + (features - features.mean(0)) @ move
    return move, moved, probability.bending_line(moved, targets, weights)
