"""The distinct sentences that a calibration rests on: all of them, or a seeded sample where there are very many.

Bottom-k sampling (Cohen and Kaplan, PODC 2007): the texts whose keyed hashes are the smallest. Uniform among distinct
texts, and the same whatever the order of the lines and however many processes look at them.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

# Memory decides: a vector of 768 numbers takes 3 kB, and a fit holds several copies of all of them (loadtest/peak.py).
MOST_SENTENCES = 100_000
SPARE = 2  # times the sample is held before the largest hashes are dropped


def rank(text: str, seed: int) -> int:
    """A text's place, uniform in [0, 2⁶⁴)."""
    digest = hashlib.blake2b(text.encode(), digest_size=8, key=seed.to_bytes(8, "little", signed=True)).digest()
    return int.from_bytes(digest, "big")


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
    found: dict[str, int] = {}  # lines
    for text in lines:
        count += 1
        found.setdefault(text, count)
        if len(found) > most:
            break
    else:
        return Draw(list(found), count, len(found), list(found.values()))
    ranks = {text: rank(text, seed) for text in found}
    seen = set(ranks.values())
    limit = 2**64
    for text in lines:
        count += 1
        place = rank(text, seed)
        seen.add(place)
        if place < limit:
            ranks[text] = place
            found.setdefault(text, count)
            if len(ranks) > SPARE * most:
                ranks = dict(sorted(ranks.items(), key=by_rank)[:most])
                found = {text: found[text] for text in ranks}
                limit = next(reversed(ranks.values())) + 1
    texts = [text for text, _ in sorted(ranks.items(), key=by_rank)[:most]]
    return Draw(texts, count, len(seen), [found[text] for text in texts])


def by_rank(item: tuple[str, int]) -> tuple[int, str]:
    return item[1], item[0]
