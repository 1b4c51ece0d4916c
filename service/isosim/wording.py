"""Wording of messages: lists of names, the known name that a caller most likely meant, and the place of an entry."""

import itertools
from collections.abc import Iterable
from difflib import get_close_matches

SHOWN = 80  # a message shows at most this many characters of a name that the caller sent
MOST_NAMES = 1000  # a message lists at most this many characters of names
# A known name is suggested if its difflib ratio to the name that was sent is at least 0.6. For example, `metod` and
# `method` have a ratio of 0.91; the unrelated names `sentences` and `encoder` have a ratio of 0.5.
LIKELY = 0.6

# Name of a list -> (word for an entry, words for its parts), as used in messages. For example, an entry of `pairs` is
# called a "pair", and its parts are called "1st text" and "2nd text".
ENTRIES = {
    "pairs": ("pair", ("1st text", "2nd text")),
    "vectors": ("pair", ("1st vector", "2nd vector")),
    "labels": ("labelled pair", ("1st text", "2nd text", "label", "weight")),
    "texts": ("text", ()),
    "sentences": ("sentence", ()),
    "cosines": ("cosine", ()),
    "distances": ("distance", ()),
    "documents": ("document", ()),
    "inputs": ("text", ()),
    "input": ("text", ()),
    "text_1": ("text", ()),
    "text_2": ("text", ()),
    "ids": ("token id", ()),
}


def nearest(name: str, known: Iterable[str], cutoff: float = LIKELY) -> str | None:
    """The known name that the caller most likely meant, or None if no name is similar."""
    close = get_close_matches(name[:SHOWN].lower(), list(known), 1, cutoff)
    return close[0] if close else None


def named(names: Iterable[str]) -> str:
    """The names, separated by commas. Long lists are cut after about MOST_NAMES characters: "a, b and 12 more"."""
    every = [name[:SHOWN] for name in names]
    ends = itertools.accumulate(len(name) + 2 for name in every)
    shown = [name for name, end in zip(every, ends, strict=True) if end <= MOST_NAMES]
    return ", ".join(shown) + (f" and {len(every) - len(shown)} more" * (len(every) > len(shown)))


def version_name(domain: str, version: int) -> str:
    return f"version {version} of {domain!r}"


def ordinal(number: int) -> str:
    """A number as an ordinal in digits.

    >>> [ordinal(number) for number in (1, 2, 3, 4, 11, 22, 113)]
    ['1st', '2nd', '3rd', '4th', '11th', '22nd', '113th']
    """
    tens = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{tens}"


def place(field: str) -> str:
    """A field's path for a message. The index of a list's entry is shown twice: from 0 as in code, from 1 in words.

    >>> place("pairs.4.1")
    'pairs[4][1] (the 2nd text of the 5th pair)'
    >>> place("inputs.sentences.2")
    'inputs.sentences[2] (the 3rd sentence)'
    >>> place("parameters.domain")
    'parameters.domain'
    """
    parts = field.split(".")
    numbers: list[int] = []
    while len(parts) > 1 and parts[-1].isascii() and parts[-1].isdigit():
        numbers.insert(0, int(parts.pop()))
    path = ".".join(parts)
    if not numbers:
        return path
    entry, inner = ENTRIES.get(parts[-1], ("entry", ()))
    counted = f"{ordinal(numbers[0] + 1)} {entry}"
    for number in numbers[1:]:
        part = inner[number] if number < len(inner) else f"{ordinal(number + 1)} part"
        counted = f"{part} of the {counted}"
    return f"{path}{''.join(f'[{number}]' for number in numbers)} (the {counted})"
