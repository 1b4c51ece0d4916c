"""What a calibration has to be given; asked where text comes in, and again where it is fitted."""

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from service.core.errors import InvalidInput
from service.core.jobs.job import LabelledPair
from service.core.jobs.labels import HIGHEST_GRADE

FEWEST_SENTENCES = 200  # distinct ones; from fewer a threshold for 1 % is off by up to a factor 2 (docs/quality.md)
FEWEST_FOR_A_FLOW = 500
STEADY_FLOW = 3000  # below, a flow's fit is unsteady (QUALITY section 4)
FEWEST_LABELS = 20  # distinct pairs
MOST_UNEVEN = 1e6  # a labelled pair's weight over another's


def fewest_sentences(method: str, dim: int) -> int:
    """Distinct sentences that a method needs for vectors of this width.

    Full whitening is at its worst where sentences are about as many as dimensions (QUALITY section 4).
    """
    name = method.partition(":")[0]
    if name in {"whitening", "whitening-k"}:
        return max(FEWEST_SENTENCES, 2 * dim)
    return FEWEST_FOR_A_FLOW if "flow" in name else FEWEST_SENTENCES


def check_sentences(
    method: str, dim: int, distinct: int, *, sent: int | None = None, unreadable: int = 0, brought: bool = False
) -> None:
    """`sent`: sentences with their repetitions; `unreadable`: those left out; `brought`: vectors are what is counted.

    Raises:
        InvalidInput: too few; the message says how many are needed.
    """
    needed = fewest_sentences(method, dim)
    if distinct < needed:
        counted = f"{distinct} distinct vectors" if brought else f"texts: {distinct} distinct sentences"
        repeated = f" among {sent:,}" if sent is not None and sent > distinct else ""
        every = ", as every method does" if needed == FEWEST_SENTENCES else f" (method 'auto': {FEWEST_SENTENCES})"
        raise InvalidInput(
            f"{counted}{repeated}; method {method!r} needs at least {needed}{every}{besides(unreadable)}"
        )


def besides(unreadable: int) -> str:
    """The end of a message that counts what was given."""
    return f" ({unreadable} more hold no token that the encoder knows)" if unreadable else ""


class LabelSummary:
    """Labelled pairs as they come in: can anything be learnt from them?"""

    def __init__(self) -> None:
        self.lowest, self.highest = float("inf"), float("-inf")
        self.lightest, self.heaviest = float("inf"), 0.0
        self._pairs: set[tuple[str, str]] = set()  # until there are enough to know that there are enough

    def add(self, a: str, b: str, label: float, weight: float = 1.0) -> None:
        """Raises InvalidInput for a label outside 0–5, or a weight that is not above 0."""
        if not 0 < weight < math.inf:
            raise InvalidInput(f"weight {weight:g}: a weight is a number above 0")
        if not 0 <= label <= HIGHEST_GRADE:
            raise InvalidInput(f"label {label:g}: labels are 0 or 1, or grades within 0–1 or 0–5")
        self.lowest, self.highest = min(self.lowest, label), max(self.highest, label)
        self.lightest, self.heaviest = min(self.lightest, weight), max(self.heaviest, weight)
        if len(self._pairs) < FEWEST_LABELS:
            self._pairs.add((min(a, b), max(a, b)))

    def check(self, *, unreadable: int = 0) -> None:
        """`unreadable`: pairs that were left out.

        Raises:
            InvalidInput: too few distinct pairs, all labels alike, or weights too unlike.
        """
        if len(self._pairs) < FEWEST_LABELS:
            raise InvalidInput(
                f"labels: {len(self._pairs)} distinct labelled pairs were posted, at least {FEWEST_LABELS} are needed"
                + besides(unreadable)
            )
        if self.lowest == self.highest:
            needed = "both kinds, 0 and 1" if self.lowest in (0.0, 1.0) else "more than one grade"
            raise InvalidInput(f"labels: all are {self.lowest:g}; a probability needs {needed}")
        check_spread(self.lightest, self.heaviest)


def check_spread(lightest: float, heaviest: float) -> None:
    """Raises InvalidInput for weights of which the light ones say nothing beside the heavy ones."""
    if lightest * MOST_UNEVEN < heaviest:
        raise InvalidInput(
            f"labels: weights from {lightest:g} to {heaviest:g}; the largest is at most {MOST_UNEVEN:,.0f} times the "
            "smallest"
        )


def check_labels(labels: Iterable[LabelledPair], *, unreadable: int = 0) -> None:
    """Raises InvalidInput where nothing can be learnt."""
    summary = LabelSummary()
    for pair in labels:
        summary.add(*pair)
    summary.check(unreadable=unreadable)


def distinct_labels(labels: Sequence[LabelledPair]) -> list[LabelledPair]:
    """Each pair once, whichever side comes first; a pair with two labels keeps both.

    A copy held out from a fit that saw its twin would make every held-out figure too good. Where pairs have weights,
    those of copies are added up.
    """
    distinct: dict[tuple[str, str, float], LabelledPair] = {}
    weighted = any(pair.weight != 1 for pair in labels)
    for pair in labels:
        key = (min(pair.a, pair.b), max(pair.a, pair.b), pair.label)
        first = distinct.get(key)
        if first is None:
            distinct[key] = pair
        elif weighted:
            distinct[key] = first._replace(weight=first.weight + pair.weight)
    return list(distinct.values())


# Memory decides: a vector of 768 numbers takes 3 kB, and a fit holds several copies of all of them (loadtest/peak.py).
MOST_SENTENCES = 100_000
SPARE = 2  # times the sample is held before the largest hashes are dropped


def rank(text: str, seed: int) -> int:
    """A text's place, uniform in [0, 2⁶⁴)."""
    digest = hashlib.blake2b(text.encode(), digest_size=8, key=seed.to_bytes(8, "little", signed=True)).digest()
    return int.from_bytes(digest, "big")


class Allowance:
    """How many texts one calibration may send to the server of a remote encoder, which may charge for each."""

    def __init__(
        self, encoder: str, most: int | None, remedy: str, say: Callable[[str], None] = lambda _: None
    ) -> None:
        """`most` None: as many as it takes."""
        self.encoder, self.most, self.remedy, self.say = encoder, most, remedy, say
        self.sent = 0

    def __call__(self, texts: int) -> None:
        """Before so many more are sent. Raises InvalidInput where they are too many."""
        self.sent += texts
        if self.most is not None and self.sent > self.most:
            raise InvalidInput(
                f"{self.sent:,} texts would go to the server of encoder {self.encoder}, which may charge for each, and "
                f"at most {self.most:,} are allowed; {self.remedy}"
            )
        self.say(f"{texts:,} texts go to the server of encoder {self.encoder}")


@dataclass(frozen=True)
class Draw:
    """Sentences to use, and how many there were: lines, and distinct ones (by 64-bit hashes where not all are used)."""

    texts: list[str]
    posted: int
    distinct: int
    lines: list[int] = field(default_factory=list, compare=False)  # of each text's first appearance, from 1


def draw(posted: Iterable[str], seed: int, most: int = MOST_SENTENCES) -> Draw:
    """All distinct texts in the order of their first line; beyond `most` that many, in the order of their hashes.

    Of more texts than can be used only hashes are kept: 1,000,000 distinct sentences take 0.1 GB and not their text.
    """
    lines, count = iter(posted), 0
    lines_of: dict[str, int] = {}  # lines
    for text in lines:
        count += 1
        lines_of.setdefault(text, count)
        if len(lines_of) > most:
            break
    else:
        return Draw(list(lines_of), count, len(lines_of), list(lines_of.values()))
    ranks = {text: rank(text, seed) for text in lines_of}
    seen = set(ranks.values())
    limit = 2**64
    for text in lines:
        count += 1
        place = rank(text, seed)
        seen.add(place)
        if place < limit:
            ranks[text] = place
            lines_of.setdefault(text, count)
            if len(ranks) > SPARE * most:
                ranks = dict(sorted(ranks.items(), key=by_rank)[:most])
                lines_of = {text: lines_of[text] for text in ranks}
                limit = next(reversed(ranks.values())) + 1
    texts = [text for text, _ in sorted(ranks.items(), key=by_rank)[:most]]
    return Draw(texts, count, len(seen), [lines_of[text] for text in texts])


def by_rank(item: tuple[str, int]) -> tuple[int, str]:
    return item[1], item[0]
