"""Reads the texts on which quality is measured, from a folder with `text/`, `pairs/` and `sts/`."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from isosim.arrays import Rows, Vectors
from isosim.encoders.store import EncoderArtifact
from isosim.errors import InvalidInput
from isosim.jobs.job import LabelledPair
from isosim.jobs.labelled_pairs import Pairs, read_pairs
from isosim.jobs.offline import open_texts
from isosim.jobs.requirements import check_labels
from isosim.jobs.text_lines import read_lines

HOME = "wikipedia-en"
PART = 4096  # number of texts whose vectors are in one file of the cache; an interruption loses at most one file

Texts = Callable[[Path], list[str]]
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class PairVectors:
    """Pairs with the vectors of both sides (`left`, `right`), and all distinct sentences with their vectors."""

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


def quora_pairs(folder: Path) -> Pairs:
    """Labelled pairs of questions. Raises InvalidInput if no probability can be fitted to them."""
    pairs = read_pairs(folder / "pairs/quora.tsv")
    check_labels(map(LabelledPair, pairs.left, pairs.right, pairs.gold.tolist()))
    return pairs


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
    """Draws up to `count` distinct sentences of a source at random.

    Near-duplicates are kept, because the text of real domains contains near-duplicates.

    Raises:
        InvalidInput: the source has fewer than `least` distinct sentences.
    """
    distinct = list(dict.fromkeys(text.strip() for text in SOURCES[source](folder) if text.strip()))
    if len(distinct) < least:
        raise InvalidInput(f"{source} has {len(distinct)} distinct sentences, at least {least} are needed")
    order = np.random.default_rng(seed).permutation(len(distinct))[:count]
    return [distinct[index] for index in order]


class Encoder:
    """An exported encoder that caches the vectors of texts in a folder, separately for each encoder."""

    def __init__(self, artifact: EncoderArtifact, cache: Path | None = None) -> None:
        self.artifact = artifact
        self._encode = open_texts(artifact)
        self._folder = None if cache is None else cache / artifact.digest
        self._rows: dict[str, int] = {}  # SHA-256 of a text -> row of its vector
        self._vectors: list[Vectors] = []
        self._tokens: list[Rows] = []
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            for part in sorted(self._folder.glob("*.npz")):
                with np.load(part, allow_pickle=False) as stored:
                    self._remember(stored["texts"].tolist(), stored["vectors"], stored["tokens"])

    def vectors(self, texts: Sequence[str]) -> Vectors:  # (N, D)
        return self(texts)[0]

    def __call__(
        self, texts: Sequence[str], progress: Callable[[float], None] = lambda _: None
    ) -> tuple[Vectors, Rows]:
        """Vectors (N, D) and numbers of tokens (N,) of texts, from the cache if possible."""
        if self._folder is None:
            encodings = self._encode(texts, progress)
            return encodings.vectors, encodings.tokens
        digests = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
        missing = {digest: text for digest, text in zip(digests, texts, strict=True) if digest not in self._rows}
        for start in range(0, len(missing), PART):
            names = [*missing][start : start + PART]
            encodings = self._encode([missing[name] for name in names])
            part = self._folder / f"{hashlib.sha256(''.join(names).encode()).hexdigest()}.npz"
            np.savez(part, texts=np.array(names), vectors=encodings.vectors, tokens=encodings.tokens)
            self._remember(names, encodings.vectors, encodings.tokens)
            progress(min(start + PART, len(missing)) / len(missing))
        self._vectors, self._tokens = [np.concatenate(self._vectors)], [np.concatenate(self._tokens)]
        rows = [self._rows[digest] for digest in digests]
        return self._vectors[0][rows], self._tokens[0][rows]

    def _remember(self, names: Sequence[str], vectors: Vectors, tokens: Rows) -> None:
        # Row of the first new vector. `_rows` may have fewer entries: a text that two parallel commands stored has two
        # vectors, but one entry.
        first = sum(map(len, self._vectors))
        self._rows |= {name: first + row for row, name in enumerate(names)}
        self._vectors.append(vectors)
        self._tokens.append(tokens)
