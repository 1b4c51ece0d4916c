"""Texts for requests: pairs from STS-B, and parts of Wikipedia with given lengths."""

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import orjson

from loadtest.client import request

Pair = tuple[str, str]


def sts_pairs(data: Path) -> list[Pair]:
    """All 8,628 pairs of STS-B, shuffled with a fixed seed.

    The files are ordered by source (captions before news), so their beginning is not representative.
    """
    pairs: list[Pair] = []
    for part in ("train", "dev", "test"):
        for line in (data / "sts" / "stsb" / f"{part}.tsv").read_text().splitlines():
            _, a, b = line.split("\t")[:3]
            pairs.append((a, b))
    random.Random(0).shuffle(pairs)  # noqa: S311 - not for security
    return pairs


def mixed_lengths(data: Path, tokens: Iterator[int], count: int) -> list[str]:
    """Consecutive words of Wikipedia, with about the given number of tokens per text (1.35 tokens per word)."""
    words = itertools.cycle((data / "text" / "wikipedia-en.txt").read_text().split())
    return [" ".join(itertools.islice(words, max(1, round(next(tokens) / 1.35)))) for _ in range(count)]


def body_of(pairs: list[Pair], domain: str = "default") -> bytes:
    return orjson.dumps({"pairs": pairs, "domain": domain})


def single_pairs(pairs: list[Pair], domain: str = "default") -> list[bytes]:
    return [request("/similarity", body_of([pair], domain)) for pair in pairs]


def infinity_pairs(pairs: list[Pair], model: str) -> list[bytes]:
    return [request("/embeddings", orjson.dumps({"model": model, "input": list(pair)})) for pair in pairs]
