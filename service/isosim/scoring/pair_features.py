"""What the words of two texts say about a pair beside the similarity of their vectors, and the probability from both.

An encoder sees texts that differ only in a number or a negation as nearly equal.

>>> features = PairFeatures.of("Flights to Rome in June 2023", "Flights to Rome in June 2024")
>>> features.numbers_differ, features.negation_differs
(True, False)
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np

from isosim.arrays import Doubles, Floats
from isosim.scoring.probability import ProbabilityMap, evidence, read_curve, smooth_targets

# A word ends at a space or a punctuation mark. Letters of Thai, Lao, kana and Han are words of their own.
UNSPACED = "\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff"
MARKS = (
    r"\s\0-/:-@\[-`{-\xa9\xab\xb7\xbb\xbf\u060c\u061b\u061f\u0964\u2010-\u2027\u3000-\u303f\uff01-\uff0f"
    r"\uff1a-\uff20"
)
WORD = re.compile(rf"[{UNSPACED}]|[^{MARKS}{UNSPACED}]+")
# The same for ASCII text, but faster: letters become lower case, and all but letters and digits becomes a space.
ASCII = bytes(ord(chr(code).lower()) if chr(code).isalnum() else 32 for code in range(128)).ljust(256)
NUMBER = re.compile(r"\d+(?:[.,\u066b\u066c]\d+)*")
GROUPS = re.compile(r"[.,\u066c](?=\d{3}(?!\d))")  # between thousands: "1,000" and "1.000" are 1000
# Negations that are words of their own. Other languages, and negations that are part of a word ("unhappy"; those of
# Japanese, Chinese and Thai, which are written without spaces), are not seen.
WORDS = (
    "not no never none nobody nothing neither nor nowhere cannot without "  # English; `words` turns "n't" into "not"
    "dont doesnt didnt isnt arent wasnt werent wouldnt couldnt shouldnt havent hasnt "  # codespell:ignore
    "nicht kein keine keinen keinem keiner keines nie niemals nichts niemand ohne "  # German
    "не нет ни никогда никто ничего без "  # Russian
    "لا ليس ليست لم لن غير بدون "  # Arabic
    "नहीं न ना मत बिना "  # Hindi
    "안 못"  # Korean
)
NEGATIONS = frozenset(WORDS.split())
KOREAN = re.compile(r"\b(?:않|없|아니)\w*")  # replaced by one of NEGATIONS, as "n't" is
# A negation on one side counts if so large a share of the shorter text's other words is in both texts. In paraphrases
# with other words, one often negates them. With 0.85, one of the flags is raised for 2.0 % of Quora's duplicates, with
# 0.75 for 2.8 % (evaluation/results/pair-features.md).
ALIKE = 0.85

FLAGS = ["numbers_differ", "negation_differs"]

# Prior means and standard deviations of the logit's slope along the evidence, and of its change per unit of each
# feature, in the order of `PairFeatures`. Whether shared words speak for a match differs from set to set; that
# other numbers and a negation speak against it does not (evaluation/results/pair-features.md).
PRIOR, DEVIATIONS = (0.0, 0.0, -1.5, -0.7), (1.4, 1.4, 0.5, 0.5)
SLOPE, SLOPE_DEVIATION, LEAST_SLOPE = 1.1, 0.35, 0.3
STEPS = 30  # of Newton's method at most
FEWEST_LABELS = 100  # labels, below which the similarity alone gives the probability
# Standard errors by which held-out predictions must be better. With 1, the gain with 300 labels is a seventh smaller;
# with 0, sets without gain lose more.
SURE = 0.5


class PairFeatures(NamedTuple):
    shared: float  # share of the distinct words of both texts that both have
    shared_order: float  # share of the distinct pairs of neighbouring words that both have
    numbers_differ: bool  # both have numbers, and each has one that the other lacks
    negation_differs: bool  # one of the texts has a negation, and the other words are alike

    @property
    def flags(self) -> tuple[bool, bool]:
        """The values of FLAGS."""
        return self.numbers_differ, self.negation_differs

    @classmethod
    def of(cls, a: str, b: str) -> Self:
        words_a, words_b = words(a), words(b)
        set_a, set_b = set(words_a), set(words_b)
        order_a, order_b = set(pairwise(words_a)), set(pairwise(words_b))
        numbers_a, numbers_b = (set() if "".join(w).isalpha() else numbers(t) for w, t in ((words_a, a), (words_b, b)))
        return cls(
            jaccard(set_a, set_b),
            jaccard(order_a, order_b),
            not (numbers_a <= numbers_b or numbers_b <= numbers_a),
            NEGATIONS.isdisjoint(set_a) != NEGATIONS.isdisjoint(set_b) and alike(set_a - NEGATIONS, set_b - NEGATIONS),
        )


def jaccard(a: set[Any], b: set[Any]) -> float:
    """Share of the distinct elements that both sets have; 0 if both are empty."""
    common = len(a & b)
    return common / max(len(a) + len(b) - common, 1)


def alike(a: set[str], b: set[str]) -> bool:
    return len(a & b) >= ALIKE * min(len(a), len(b)) > 0


def words(text: str) -> list[str]:
    """The words of a text, in lower case.

    >>> words("Don't go: it’s 5 o'clock!")
    ['do', 'not', 'go', 'it', 's', '5', 'o', 'clock']
    """
    if not text.isascii():
        text = KOREAN.sub("안", unicodedata.normalize("NFC", text).replace("\u2019", "'"))
    if "'" in text:
        text = text.lower().replace("n't", " not")
    return text.encode().translate(ASCII).decode().split() if text.isascii() else WORD.findall(text.lower())


def numbers(text: str) -> set[tuple[str, str]]:
    """Whole part and fraction of each number in digits of any script.

    >>> sorted(numbers("1,000 of ٢٥ cost 3.50"))
    [('1000', ''), ('25', ''), ('3', '5')]
    """
    found = set()
    for number in NUMBER.findall(text):
        digits = GROUPS.sub("", number)
        if not digits.isascii():
            digits = "".join(str(unicodedata.decimal(c, ".")) for c in digits)
        whole, _, fraction = digits.replace(",", ".").partition(".")
        found.add((whole.lstrip("0"), fraction.rstrip("0")))
    return found


def pair_features(pairs: Iterable[Sequence[str]]) -> Doubles:
    """The features of N pairs. (N, F)"""
    return np.array([PairFeatures.of(a, b) for a, b in pairs], np.float64).reshape(-1, len(PairFeatures._fields))


@dataclass(frozen=True)
class PairMap:
    """Probability of a match from a pair's false-match rate and its features, learnt from labels.

    The features move the evidence (−logit of the rate) by `moves` per unit, from their mean over the labelled pairs.
    """

    centre: Doubles  # (F,)
    moves: Doubles  # (F,)
    curve: ProbabilityMap  # along the moved evidence; its thresholds by precision are probabilities

    def probability(self, false_match_rates: Doubles, features: Doubles) -> Doubles:
        """Probability of a match. (N,), (N, F) -> (N,)"""
        moved = evidence(false_match_rates) + self.moved(features).sum(1)
        return read_curve(moved, self.curve.knots, self.curve.logits, self.curve.clip)

    def moved(self, features: Doubles) -> Doubles:
        """How far each feature moves the evidence: above 0, it speaks for a match. (N, F) -> (N, F)"""
        return (features - self.centre) * self.moves

    def arrays(self) -> dict[str, Doubles]:
        """The fields as arrays, for storage; `from_arrays` is the inverse."""
        return {"centre": self.centre, "moves": self.moves, **self.curve.arrays()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Doubles]) -> Self:
        """Raises KeyError if an array is missing, ValueError if an array is invalid."""
        centre, moves = (np.asarray(arrays[name], np.float64) for name in ("centre", "moves"))
        if not (np.isfinite(centre).all() and np.isfinite(moves).all()):
            raise ValueError("a pair map must consist of finite numbers")
        if centre.shape != (len(PairFeatures._fields),) or moves.shape != centre.shape:
            raise ValueError(f"a pair map needs {len(PairFeatures._fields)} features")
        return cls(centre, moves, ProbabilityMap.from_arrays(arrays))


def regression(x: Doubles, features: Floats, targets: Doubles, weights: Doubles) -> Doubles:
    """Penalized logistic regression of 0/1 labels on the evidence x (N,) and F of the features (N, F). (F + 2,)

    Returns the slope along the evidence, the change per unit of each feature, and the logit at the means of both.
    """
    count = features.shape[1]
    design = np.column_stack([x - x.mean(), features - features.mean(0), np.ones(len(x))])
    wanted = smooth_targets(targets, weights)
    share = np.average(wanted, weights=weights)
    prior = np.array([SLOPE, *PRIOR[:count], np.log(share / (1 - share))])
    precision = np.diag(np.array([SLOPE_DEVIATION, *DEVIATIONS[:count], np.inf]) ** -2.0)
    found = prior
    for _ in range(STEPS):
        chances = 1 / (1 + np.exp(-design @ found))
        curvature = design.T @ (design * (weights * chances * (1 - chances))[:, None]) + precision
        gradient = design.T @ (weights * (wanted - chances)) - precision @ (found - prior)
        step = np.linalg.solve(curvature + 1e-9 * np.eye(len(prior)), gradient)
        found = found + np.clip(step, -2, 2)
        if np.abs(step).max() < 1e-8:
            break
    return found


def moves(x: Doubles, features: Floats, targets: Doubles, weights: Doubles) -> Doubles:
    """How far a unit of each feature moves the evidence: its coefficient divided by that of the evidence. (F,)"""
    found = regression(x, features, targets, weights)
    move: Doubles = found[1:-1] / max(found[0], LEAST_SLOPE)
    return move
