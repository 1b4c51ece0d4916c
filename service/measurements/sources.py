"""The texts that quality is measured on: a folder with `text/`, `pairs/` and `sts/`."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from service.adapters.encoder.offline import OfflineEncoder
from service.adapters.encoder.store import EncoderArtifact
from service.adapters.labelled_pairs import Pairs, read_pairs
from service.adapters.text_lines import read_lines
from service.core.arrays import Rows, Vectors
from service.core.errors import InvalidInput

HOME = "wikipedia-en"

Texts = Callable[[Path], list[str]]
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class PairVectors:
    """Pairs with the vectors of both sides, and their distinct sentences to fit on."""

    pairs: Pairs
    left: Vectors
    right: Vectors
    texts: list[str]
    vectors: Vectors

    @classmethod
    def from_pairs(cls, pairs: Pairs, encode: Callable[[list[str]], tuple[Vectors, Rows]]) -> "PairVectors":
        texts = list(dict.fromkeys((*pairs.left, *pairs.right)))
        vectors = encode(texts)[0]
        row = {text: index for index, text in enumerate(texts)}
        left, right = (vectors[[row[text] for text in side]] for side in (pairs.left, pairs.right))
        return cls(pairs, left, right, texts, vectors)


def lines(name: str) -> Texts:
    return lambda folder: read_lines(folder / name)


def sides(pattern: str) -> Texts:
    def read(folder: Path) -> list[str]:
        files = [read_pairs(path) for path in sorted(folder.glob(pattern))]
        return [text for pairs in files for text in (*pairs.left, *pairs.right)]

    return read


SOURCES: dict[str, Texts] = {
    HOME: lines("text/wikipedia-en.txt"),
    "reuters-news": lines("text/reuters-news.txt"),
    "imdb-reviews": lines("text/imdb-reviews.txt"),
    "quora": sides("pairs/quora.tsv"),
    "STS-B": sides("sts/stsb/*.tsv"),
    "SICK": sides("sts/sick/*.tsv"),
}
KOREAN = lines("text/wikipedia-ko.txt")


def sample(folder: Path, source: str, count: int, least: int, seed: int = 0) -> list[str]:
    """Up to `count` distinct sentences of a source, drawn at random: neighbours in a file are often related.

    Exact duplicates count once; near-duplicates stay, they are part of what a domain is.
    """
    distinct = list(dict.fromkeys(text.strip() for text in SOURCES[source](folder) if text.strip()))
    if len(distinct) < least:
        raise InvalidInput(f"{source} has {len(distinct)} distinct sentences, at least {least} are needed")
    order = np.random.default_rng(seed).permutation(len(distinct))[:count]
    return [distinct[index] for index in order]


class Encoder:
    """An exported encoder that remembers vectors in a folder, by encoder and text, between commands."""

    def __init__(self, artifact: EncoderArtifact, cache: Path | None = None) -> None:
        self.artifact, self.cache = artifact, cache
        self._encode = OfflineEncoder(artifact)

    def __call__(
        self, texts: Sequence[str], progress: Callable[[float], None] = lambda _: None
    ) -> tuple[Vectors, Rows]:
        """Vectors (N, D) and tokens (N,)."""
        if self.cache is None:
            encodings = self._encode(texts, progress)
            return encodings.vectors, encodings.tokens
        content = "\0".join([self.artifact.digest, *texts]).encode()
        place = self.cache / f"{hashlib.sha256(content).hexdigest()}.npz"
        if place.is_file():
            with np.load(place, allow_pickle=False) as stored:
                return stored["vectors"], stored["tokens"]
        encodings = self._encode(texts, progress)
        self.cache.mkdir(parents=True, exist_ok=True)
        np.savez(place, vectors=encodings.vectors, tokens=encodings.tokens)
        return encodings.vectors, encodings.tokens
