"""Texts for requests: pairs from STS-B, and parts of Wikipedia with given lengths."""

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import orjson

from loadtest.client import request

Pair = tuple[str, str]


def sts_pairs(data: Path) -> list[Pair]:
    """All 8,628 pairs of STS-B, shuffled with a fixed seed, because the files are ordered by source."""
    pairs: list[Pair] = []
    for part in ("train", "dev", "test"):
        rows = (line.split("\t") for line in (data / "sts" / "stsb" / f"{part}.tsv").read_text().splitlines())
        pairs += [(a, b) for _, a, b, *_ in rows]
    random.Random(0).shuffle(pairs)  # noqa: S311 - not for security
    return pairs


def pairs_of_length(data: Path, tokens: Iterator[int], count: int) -> list[Pair]:
    """Consecutive words of Wikipedia, with about the given number of tokens per text (1.35 tokens per word)."""
    words = itertools.cycle((data / "text" / "wikipedia-en.txt").read_text().split())
    cut = [" ".join(itertools.islice(words, max(1, round(next(tokens) / 1.35)))) for _ in range(2 * count)]
    return list(zip(cut[::2], cut[1::2], strict=True))


def in_requests(pairs: list[Pair], size: int = 1, domain: str = "default") -> list[bytes]:
    """Requests to /similarity, each with `size` pairs."""
    starts = range(0, len(pairs) - size + 1, size)
    return [request("/similarity", orjson.dumps({"pairs": pairs[at : at + size], "domain": domain})) for at in starts]
