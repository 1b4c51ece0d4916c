"""Requirements on the text and labels of a calibration, checked when it is posted and again before the fit."""

import hashlib
import math
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from isosim.errors import InvalidInput
from isosim.jobs.job import LabelledPair
from isosim.jobs.labels import HIGHEST_GRADE
from isosim.scoring.method import Method

# Minimum number of distinct sentences. With fewer, a threshold for 1 % of unrelated pairs may let through 0.5 % or 2 %
# of them (docs/quality.md).
FEWEST_SENTENCES = 200
FEWEST_FOR_A_FLOW = 500
STEADY_FLOW = 3000  # with fewer sentences, the fit of a normalizing flow is unstable
FEWEST_LABELS = 20  # minimum number of distinct labelled pairs
# A calibration is refused if a larger share of its sentences is unreadable: their scores would describe only a minority
# of the domain's text.
MOST_UNREADABLE = 0.5
NAMED = 5  # number of labels that an error or a report names
MOST_UNEVEN = 1e6  # largest ratio between the weights of two labelled pairs
LEAST_WORTH = 10  # minimum effective sample size of weighted pairs (Kish, 1965, section 8.2)


def fewest_sentences(method: str, dim: int) -> int:
    """Smallest number of distinct sentences that a method accepts for vectors with `dim` dimensions.

    Full whitening needs at least 2 × `dim` sentences, because its results are worst with about `dim` sentences.
    """
    parsed = Method.parse(method)
    if parsed.name in {"whitening", "whitening-k"}:
        return max(FEWEST_SENTENCES, 2 * dim)
    return FEWEST_FOR_A_FLOW if parsed.is_flow else FEWEST_SENTENCES


def check_sentences(
    method: str, dim: int, distinct: int, *, sent: int | None = None, unreadable: int = 0, brought: bool = False
) -> None:
    """Checks that `distinct`, the number of distinct sentences (or vectors, if `brought`), is enough for the method.

    `sent` counts the sentences including duplicates. `unreadable` counts the texts that were left out because the
    encoder knows too few of their words. Both are used only in the error message.

    Raises:
        InvalidInput: `distinct` is too small; the message says how many are needed.
    """
    needed = fewest_sentences(method, dim)
    if distinct < needed:
        counted = f"{distinct} distinct vectors" if brought else f"texts: {distinct} distinct sentences"
        repeated = f" among {sent:,}" if sent is not None and sent > distinct else ""
        other = "" if needed == FEWEST_SENTENCES else f" (method 'auto': {FEWEST_SENTENCES})"
        raise InvalidInput(
            f"{counted}{repeated}; method {method!r} needs at least {needed}{other}; for steady thresholds, use "
            f"2,000 or more{besides(unreadable)}"
        )


def besides(unreadable: int) -> str:
    """End of an error message: the number of unreadable texts."""
    return f" ({unreadable} others are unreadable: the encoder knows too few of their words)" if unreadable else ""


def check_readable(distinct: int, unreadable: int) -> None:
    """Raises InvalidInput if more than MOST_UNREADABLE of the distinct sentences are unreadable."""
    if unreadable > MOST_UNREADABLE * distinct:
        raise InvalidInput(
            f"texts: {unreadable:,} of {distinct:,} distinct sentences are unreadable: the encoder knows too few of "
            "their words; calibrate with an encoder for their language"
        )


def check_vectors(method: str, dim: int, sentences: int, vectors: int) -> None:
    """Raises InvalidInput if the sentences have fewer distinct vectors than the method needs."""
    needed = fewest_sentences(method, dim)
    if vectors < needed:
        raise InvalidInput(
            f"texts: {sentences:,} distinct sentences have only {vectors:,} distinct vectors, and method {method!r} "
            f"needs at least {needed}: the encoder cannot tell the sentences apart"
        )


class LabelSummary:
    """Collects labelled pairs one by one, and checks whether a curve of probabilities can be fitted to them.

    `kind`: one of LABEL_KINDS. It is never guessed from the labels: a single mistyped label would change the meaning of
    all others.
    """

    def __init__(self, kind: str = "matches") -> None:
        self.kind = kind
        self.pairs = 0
        self.others = 0  # number of labels other than 0 and 1, if `kind` is matches
        self._others: list[str] = []  # where the first of them are, and their values
        self.lowest, self.highest = float("inf"), float("-inf")
        self._weights: list[float] = []
        self._pairs: set[tuple[str, str]] = set()  # distinct pairs; once there are FEWEST_LABELS, no more are kept

    def add(self, pair: LabelledPair, where: str) -> None:
        """Adds a pair; `where` says which one it is, for example "line 7".

        Raises:
            InvalidInput: a weight is 0, negative or infinite, or a grade lies outside 0 to 5. Labels of matches other
                than 0 and 1 are collected for `check`, which names all of them at once.
        """
        label, weight = pair.label, pair.weight
        self.pairs += 1
        if not 0 < weight < math.inf:
            raise InvalidInput(f"{where}: weight {weight:g}: a weight must be a number above 0")
        if self.kind == "matches" and label not in (0, 1):
            self.others += 1
            self._others += [f"{label:g} in {where}"] if len(self._others) < NAMED else []
            return
        if not 0 <= label <= HIGHEST_GRADE:
            raise InvalidInput(f"{where}: label {label:g}: grades are within 0–1 or 0–5")
        self.lowest, self.highest = min(self.lowest, label), max(self.highest, label)
        self._weights.append(weight)
        if len(self._pairs) < FEWEST_LABELS:
            self._pairs.add(unordered(pair))

    def check(self, *, left_out: str = "") -> None:
        """Checks the pairs added so far.

        `left_out` says which other pairs were left out, and why. It is used only in the error message.

        Raises:
            InvalidInput: labels of matches are neither 0 nor 1, there are too few distinct pairs, all labels are
                equal, the weights differ too much, or a few pairs have most of the weight.
        """
        if self.others:
            more = ", …" * (self.others > len(self._others))
            raise InvalidInput(
                f"labels: {self.others:,} of {self.pairs:,} {'is' if self.others == 1 else 'are'} neither 0 nor 1: "
                f"{', '.join(self._others)}{more}; write 1 for a match and 0 for no match, or say that the labels are "
                "grades (kind: grades)"
            )
        if len(self._pairs) < FEWEST_LABELS:
            raise InvalidInput(
                f"labels: {len(self._pairs)} distinct labelled pairs were posted, at least {FEWEST_LABELS} are needed"
                + left_out
            )
        if self.lowest == self.highest:
            needed = "both kinds, 0 and 1" if self.lowest in (0.0, 1.0) else "more than one grade"
            raise InvalidInput(f"labels: all are {self.lowest:g}; a probability needs {needed}")
        lightest, heaviest = min(self._weights), max(self._weights)
        if lightest * MOST_UNEVEN < heaviest:
            raise InvalidInput(
                f"labels: weights from {lightest:g} to {heaviest:g}; the largest may be at most {MOST_UNEVEN:,.0f} "
                "times the smallest"
            )
        relative = [weight / heaviest for weight in self._weights]
        worth = sum(relative) ** 2 / sum(one**2 for one in relative)
        if worth < LEAST_WORTH:
            raise InvalidInput(
                f"a few of the {self.pairs} labelled pairs have most of the weight, so that all of them are worth only "
                f"{worth:.1f} equally weighted pairs; at least {LEAST_WORTH} are needed: add pairs or use more even "
                "weights"
            )


def check_labels(labels: Iterable[LabelledPair], kind: str = "matches", *, left_out: str = "") -> None:
    """Raises InvalidInput if no probability can be fitted to the labels. `left_out`: see `LabelSummary.check`."""
    summary = LabelSummary(kind)
    for number, pair in enumerate(labels, 1):
        summary.add(pair, f"pair {number}")
    summary.check(left_out=left_out)


def unordered(pair: LabelledPair) -> tuple[str, str]:
    """Both sentences, in an order that is the same for a pair and for the pair with swapped sentences."""
    return min(pair.a, pair.b), max(pair.a, pair.b)


def without_contradictions(labels: Sequence[LabelledPair]) -> tuple[list[LabelledPair], dict[str, Any]]:
    """Leaves out all labels of pairs that are labelled both 0 and 1: which label is the mistake is unknown.

    Returns:
        The other labels, and facts about those left out; no facts if there are none. `first` has the numbers, counted
        from 1, of the first pairs' labels.

    >>> one, two = LabelledPair("a", "b", 1.0), LabelledPair("b", "a", 0.0)
    >>> without_contradictions([one, LabelledPair("a", "c", 0.0), two])
    ([LabelledPair(a='a', b='c', label=0.0, weight=1.0)], {'pairs': 1, 'labels': 2, 'first': [[1, 3]]})
    """
    places: dict[tuple[str, str], list[int]] = {}
    for place, pair in enumerate(labels):
        places.setdefault(unordered(pair), []).append(place)
    both = {sides: at for sides, at in places.items() if len({labels[place].label for place in at}) > 1}
    if not both:
        return [*labels], {}
    first = [[place + 1 for place in at[:NAMED]] for at in islice(both.values(), NAMED)]
    facts = {"pairs": len(both), "labels": sum(map(len, both.values())), "first": first}
    return [pair for pair in labels if unordered(pair) not in both], facts


def distinct_labels(labels: Sequence[LabelledPair]) -> list[LabelledPair]:
    """Keeps one copy of each labelled pair, so that a pair is not used both for the fit and for the evaluation.

    A pair with swapped sentences is a copy; a pair with another grade is not. If any pair has a weight other than 1,
    the weights of copies are added up. Otherwise every pair keeps the weight 1.
    """
    distinct: dict[tuple[str, str, float], LabelledPair] = {}
    weighted = any(pair.weight != 1 for pair in labels)
    for pair in labels:
        key = (*unordered(pair), pair.label)
        first = distinct.get(key)
        if first is None:
            distinct[key] = pair
        elif weighted:
            distinct[key] = first._replace(weight=first.weight + pair.weight)
    return list(distinct.values())


# Limited by memory: a vector of 768 numbers takes 3 kB, and a fit holds several copies of it (loadtest/README.md).
MOST_SENTENCES = 100_000


def rank(text: str, seed: int) -> int:
    """A pseudorandom sort key of a text, uniform in [0, 2⁶⁴)."""
    digest = hashlib.blake2b(text.encode(), digest_size=8, key=seed.to_bytes(8, "little", signed=True)).digest()
    return int.from_bytes(digest, "big")


def draw(posted: Iterable[str], seed: int, most: int = MOST_SENTENCES) -> tuple[dict[str, int], int, int]:
    """The texts to use, each with the line of its first appearance (from 1), and how many texts and distinct ones were
    posted. All distinct texts are used, in order; of more than `most`, those with the lowest ranks, lowest first."""
    count, lines_of = 0, dict[str, int]()
    for count, text in enumerate(posted, 1):
        lines_of.setdefault(text, count)
    if len(lines_of) <= most:
        return lines_of, count, len(lines_of)
    lowest = sorted(lines_of, key=lambda text: (rank(text, seed), text))[:most]
    return {text: lines_of[text] for text in lowest}, count, len(lines_of)
