"""The corpora on which quality is measured, and encoders that keep the vectors of texts in a folder."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from isosim.arrays import Rows, Vectors
from isosim.encoders.store import EncoderStore
from isosim.errors import InvalidInput
from isosim.jobs.labelled_pairs import Pairs, read_pairs
from isosim.jobs.offline import open_texts
from isosim.jobs.text_lines import read_lines

HOME = "wikipedia-en"
Texts = Callable[[Path], list[str]]
Row = dict[str, Any]  # a line of a result: column -> text, number, or list of numbers, one per split


def lines(name: str) -> Texts:
    return lambda folder: read_lines(folder / name)


def sides(pattern: str) -> Texts:
    """Both sentences of all pairs in the files that match the pattern."""

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
ALL = ",".join(SOURCES)


def distinct(texts: Sequence[str], source: str, count: int, least: int, seed: int = 0) -> list[str]:
    """At most `count` distinct texts, in random order. Near-duplicates stay, because text of real domains has them.

    Raises:
        InvalidInput: there are fewer than `least`.
    """
    kept = list(dict.fromkeys(text.strip() for text in texts if text.strip()))
    if len(kept) < least:
        raise InvalidInput(f"{source} has {len(kept)} distinct sentences, at least {least} are needed")
    order = np.random.default_rng(seed).permutation(len(kept))[:count]
    return [kept[index] for index in order]


class Encoder:
    """An encoder of a store. With `cache`, each list of texts is embedded once and its vectors are kept there."""

    def __init__(self, store: str, name: str, cache: Path | None = None) -> None:
        self.artifact = EncoderStore.at(store).find(name)
        self.encode = open_texts(self.artifact)
        self.cache = None if cache is None else cache / self.artifact.digest

    def __call__(self, texts: Sequence[str]) -> tuple[Vectors, Rows]:
        """Vectors (N, D) and numbers of tokens (N,)."""
        if self.cache is None:
            encodings = self.encode(texts)
            return encodings.vectors, encodings.tokens
        name = hashlib.sha256("\0".join(texts).encode()).hexdigest()
        file = self.cache / f"{name}.npz"
        if not file.is_file():
            encodings = self.encode(texts)
            self.cache.mkdir(parents=True, exist_ok=True)
            part = file.with_suffix(".part.npz")
            np.savez(part, vectors=encodings.vectors, tokens=encodings.tokens)
            part.rename(file)
        with np.load(file, allow_pickle=False) as kept:
            return kept["vectors"], kept["tokens"]

    def vectors(self, texts: Sequence[str]) -> Vectors:
        return self(texts)[0]


@dataclass(frozen=True)
class Bench:
    """What every experiment is given: the folder of the corpora, and the encoder to measure."""

    data: Path
    store: str
    encoder: Encoder
    cache: Path | None = None

    @classmethod
    def of(cls, data: Path, store: str, encoder: str, cache: Path | None = None) -> "Bench":
        return cls(data, store, Encoder(store, encoder, cache), cache)

    def other(self, encoder: str) -> "Bench":
        return Bench.of(self.data, self.store, encoder, self.cache)

    def sample(self, source: str, count: int, least: int, seed: int = 0) -> list[str]:
        """At most `count` distinct sentences of a source. Raises InvalidInput if it has fewer than `least`."""
        if source not in SOURCES:
            raise InvalidInput(f"unknown source {source!r}; choose from {ALL}")
        return distinct(SOURCES[source](self.data), source, count, least, seed)

    def quora(self) -> Pairs:
        return read_pairs(self.data / "pairs/quora.tsv")


@dataclass(frozen=True)
class PairVectors:
    """Pairs with the vectors of both sides, and their distinct sentences with their vectors."""

    pairs: Pairs
    left: Vectors
    right: Vectors
    row: dict[str, int]  # sentence -> row in `vectors`
    vectors: Vectors

    @classmethod
    def from_pairs(cls, pairs: Pairs, encoder: Encoder) -> "PairVectors":
        row = {text: index for index, text in enumerate(dict.fromkeys((*pairs.left, *pairs.right)))}
        vectors = encoder.vectors(list(row))
        left, right = (vectors[[row[text] for text in side]] for side in (pairs.left, pairs.right))
        return cls(pairs, left, right, row, vectors)
