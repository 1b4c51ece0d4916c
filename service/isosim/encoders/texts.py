"""Tokens of texts, and their vectors."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

log = logging.getLogger(__name__)

T = TypeVar("T")
Side = Literal["right", "left"]  # "right": truncation removes the last tokens of a text; "left": the first tokens


class Tokens(NamedTuple):
    ids: Sequence[int]
    truncated: bool
    unreadable: bool = False  # whether too many of the text's words are unknown tokens, or it has only special tokens
    unknown_hash: int = 0  # see `PooledVector`


Tokenize = Callable[[Sequence[str], Side], list[Tokens]]


@dataclass(eq=False, slots=True)
class PooledVector:
    """A text's vector (D,), its number of tokens (including special tokens), and whether it was truncated.

    `unreadable`: the encoder knows too few words of the text, so that its vector says little about it. `unknown_hash`:
    64-bit hash of the token ids if the unknown token is one of them; 0 if it is not, or if the text was truncated. Two
    different texts with the same hash have the same vector, because the encoder cannot see where they differ.
    `verdict` is the p-value of the most recent out-of-domain test of the text, after the test's identity.
    """

    vector: npt.NDArray[np.float32]
    tokens: int
    truncated: bool
    unreadable: bool = False
    unknown_hash: int = 0
    verdict: tuple[object, float] | None = None


def rounded_up(length: int, step: int) -> int:
    """The smallest multiple of `step` that is not below `length`."""
    return -(-length // step) * step


def grouped(entries: Iterable[T], size: Callable[[T], int], most: int, most_size: int) -> Iterator[list[T]]:
    """Yields the entries in order, in groups of at most `most` entries whose sizes add up to at most `most_size`. An
    entry with a larger size has a group of its own."""
    group: list[T] = []
    total = 0
    for entry in entries:
        own = size(entry)
        if group and (len(group) == most or total + own > most_size):
            yield group
            group, total = [], 0
        group.append(entry)
        total += own
    if group:
        yield group


# A domain's out-of-domain test, which sets `verdict` of each text.
Judge = Callable[[Sequence[PooledVector]], object]


def judge_together(texts: Iterable[tuple[Judge | None, PooledVector | None]]) -> None:
    """Calls each domain's out-of-domain test once, with all texts of the domain: a call per text would take four times
    as long. An exception is only logged: the test runs again when the request is scored, which then fails."""
    texts_of: dict[Judge, list[PooledVector]] = {}
    for judge, text in texts:
        if judge is not None and text is not None:
            texts_of.setdefault(judge, []).append(text)
    for judge, own in texts_of.items():
        try:
            judge(own)
        except Exception:  # one domain's test must not fail the texts of other domains
            log.exception("the out-of-domain test failed for a group of texts")
