"""Wording of messages: lists of names, the known name that a caller most likely meant, and the place of an entry."""

import itertools
import re
from collections.abc import Iterable
from difflib import get_close_matches

SHOWN = 80  # a message shows at most this many characters of a name that the caller sent
MOST_NAMES = 1000  # a message lists at most this many characters of names
# A known name is suggested if its difflib ratio to the name that was sent is at least 0.6. For example, `metod` and
# `method` have a ratio of 0.91; the unrelated names `sentences` and `encoder` have a ratio of 0.5.
LIKELY = 0.6


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


def place(field: str) -> str:
    """A field's path for a message, as a person writes it.

    >>> place("pairs.4.1")
    'pairs[4][1]'
    >>> place("inputs.sentences.2")
    'inputs.sentences[2]'
    """
    return re.sub(r"\.(\d+)(?![^.])", r"[\1]", field)
