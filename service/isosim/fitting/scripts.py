"""Splits text into words at spaces. In scripts without spaces between words, each letter is a word.

Combining marks belong to the letter before them (Unicode 16, section 3.6). So do the joiners of Indic scripts, Persian
and emoji.
"""

import re
import unicodedata
from collections.abc import Sequence

# Scripts without spaces: Han, kana, bopomofo, Thai, Lao, Tibetan, Myanmar, Khmer. Hangul uses spaces.
RANGES = (
    (0x0E00, 0x109F), (0x1780, 0x17FF), (0x3005, 0x3007), (0x3021, 0x312F), (0x31A0, 0x31BF), (0x31F0, 0x31FF),
    (0x3400, 0x9FFF), (0xA9E0, 0xA9FE), (0xAA60, 0xAA7F), (0xF900, 0xFAFF), (0xFF66, 0xFF9F), (0x1AFF0, 0x1B16F),
    (0x20000, 0x323AF),
)  # fmt: skip
PLANES = ((0, 0x1FFFF), (0xE0000, 0xE01EF))  # all combining marks and format characters are in these ranges
JOINERS = "\u200c\u200d"
SKIN = "\U0001f3fb-\U0001f3ff"  # emoji modifiers (UTS 51, section 1.4.3)


def character_class(ranges: Sequence[tuple[int, int]], *categories: str) -> str:
    """The characters of `ranges` with one of the Unicode `categories`, as a regex character class without brackets.

    Args:
        ranges: first and last code point of each range, both included.
        categories: prefixes of the categories, for example "L" for all letters.
    """
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
FORMAT = character_class(PLANES, "Cf")  # invisible characters such as direction marks and soft hyphens; never tokens

EXTENDED = rf"[{MARKS}{JOINERS}{SKIN}]*"
# A token is a run of letters, a run of digits, a single punctuation mark, or a single letter of an unspaced script.
TOKEN = re.compile(
    rf"[{UNSPACED}]{EXTENDED}|[^\W\d_{UNSPACED}](?:[^\W\d_{UNSPACED}]|[{MARKS}{JOINERS}])*"
    rf"|\d+|[^\w\s{MARKS}{FORMAT}]{EXTENDED}|_"
)
LETTER = re.compile(rf"[{UNSPACED}]")
BORDER = re.compile(rf"(?=[{UNSPACED}])|(?<=[{UNSPACED}])(?=[^\W{UNSPACED}])")
MARK = re.compile(rf"[^\w\s{MARKS}{FORMAT}]|_")
BELONGING = re.compile(rf"[{MARKS}{JOINERS}{SKIN}]")


def words(text: str) -> list[str]:
    """Words of a text, split at spaces. In scripts without spaces, each letter with its combining marks is a word."""
    return (BORDER.sub(" ", text) if LETTER.search(text) else text).split()


def is_unspaced(text: str) -> bool:
    """Whether the text is mostly in a script without spaces between words, such as Chinese or Thai."""
    return 2 * len(LETTER.findall(text)) > len(words(text))


def characters(text: str) -> list[str]:
    """Characters of a text, without spaces. A letter with its combining marks is one character; so are joined emoji."""
    clusters: list[str] = []
    for c in text:
        if clusters and (BELONGING.match(c) or clusters[-1].endswith("\u200d")):
            clusters[-1] += c
        elif not c.isspace():
            clusters.append(c)
    return clusters
