"""Where words begin and end: at spaces, and around every character in scripts that put none between words.

Combining marks belong to the letter before them (Unicode 16, section 3.6), and so do the joiners of Indic scripts,
Persian and emoji.
"""

import re
import unicodedata
from collections.abc import Sequence

# Han, kana, bopomofo; Thai, Lao, Tibetan; Myanmar; Khmer; Han beyond the first plane. Hangul has spaces.
RANGES = (
    (0x0E00, 0x109F), (0x1780, 0x17FF), (0x3005, 0x3007), (0x3021, 0x312F), (0x31A0, 0x31BF), (0x31F0, 0x31FF),
    (0x3400, 0x9FFF), (0xA9E0, 0xA9FE), (0xAA60, 0xAA7F), (0xF900, 0xFAFF), (0xFF66, 0xFF9F), (0x1AFF0, 0x1B16F),
    (0x20000, 0x323AF),
)  # fmt: skip
PLANES = ((0, 0x1FFFF), (0xE0000, 0xE01EF))  # those that hold combining marks and format characters
JOINERS = "\u200c\u200d"
SKIN = "\U0001f3fb-\U0001f3ff"  # emoji modifiers (UTS 51, section 1.4.3)


def character_class(ranges: Sequence[tuple[int, int]], *categories: str) -> str:
    """The characters of the ranges, ends included, whose Unicode category begins so: the inside of [] in a regex."""
    runs: list[list[int]] = []
    for first, last in ranges:
        for code in range(first, last + 1):
            if unicodedata.category(chr(code)).startswith(categories):
                if runs and runs[-1][1] == code - 1:
                    runs[-1][1] = code
                else:
                    runs.append([code, code])
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in runs)


UNSPACED = character_class(RANGES, "L")
MARKS = character_class(PLANES, "M")
FORMAT = character_class(PLANES, "Cf")  # direction marks, soft hyphens, zero-width spaces: no text

EXTENDED = rf"[{MARKS}{JOINERS}{SKIN}]*"
# Letters run together, but each letter of an unspaced script is its own token; digits run; each mark alone.
TOKEN = re.compile(
    rf"[{UNSPACED}]{EXTENDED}|[^\W\d_{UNSPACED}](?:[^\W\d_{UNSPACED}]|[{MARKS}{JOINERS}])*"
    rf"|\d+|[^\w\s{MARKS}{FORMAT}]{EXTENDED}|_"
)
LETTER = re.compile(rf"[{UNSPACED}]")
BORDER = re.compile(rf"(?=[{UNSPACED}])|(?<=[{UNSPACED}])(?=[^\W{UNSPACED}])")
MARK = re.compile(rf"[^\w\s{MARKS}{FORMAT}]|_")
BELONGING = re.compile(rf"[{MARKS}{JOINERS}{SKIN}]")


def words(text: str) -> list[str]:
    """Parted by spaces; a letter of an unspaced script is a word of its own, with the marks behind it."""
    return (BORDER.sub(" ", text) if LETTER.search(text) else text).split()


def is_unspaced(text: str) -> bool:
    """Are most of its words letters of a script that puts no spaces between words?"""
    return 2 * len(LETTER.findall(text)) > len(words(text))


def join_words(parts: Sequence[str]) -> str:
    """Words of an unspaced text put together again: a space only between two that would run into one."""
    text = ""
    for part in parts:
        ends = (text[-1:], part[:1])
        text += " " * all(end.isalnum() and not LETTER.match(end) for end in ends) + part
    return text


def characters(text: str) -> list[str]:
    """Characters as readers see them, but for spaces: with the marks after each, joined emoji whole."""
    clusters: list[str] = []
    for c in text:
        if clusters and (BELONGING.match(c) or clusters[-1].endswith("\u200d")):
            clusters[-1] += c
        elif not c.isspace():
            clusters.append(c)
    return clusters
