"""An encoder without a model: letters are tokens, and a vector is a function of them alone."""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from isosim.arrays import Vectors
from isosim.encoders.texts import Side, Tokens

DIM = 4
UNREADABLE = ("?", "n:!")  # no encoder can read the first; one whose prompt is `n:` cannot read a `!` after it


def letters(texts: Sequence[str], side: Side) -> list[Tokens]:
    """A token a letter, at most eight; a text with a mark of UNREADABLE has no known token."""
    cut = [text[:8] if side == "right" else text[-8:] for text in texts]
    return [
        Tokens([ord(letter) for letter in kept], len(text) > 8, any(mark in text for mark in UNREADABLE))
        for kept, text in zip(cut, texts, strict=True)
    ]


class FakeEncoder:
    """Remembers what it was given, and waits while `free` is cleared."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.busy = threading.Event()  # it has been called
        self.free = threading.Event()
        self.free.set()

    def prepare(self, ids: Sequence[Sequence[int]]) -> Any:
        return ids

    def run(self, prepared: Any, *, exclusive: bool = False) -> Vectors:
        self.busy.set()
        assert self.free.wait(30)
        self.batches.append(["".join(map(chr, row)) for row in prepared])
        return np.stack([vector_of(row) for row in prepared])

    @property
    def seen(self) -> list[str]:
        return [text for batch in self.batches for text in batch]


def vector_of(ids: Sequence[int]) -> Vectors:
    """(D,); no component survives rounding to half precision."""
    values = [np.sin(i + sum(n * id for n, id in enumerate(ids, 1))) for i in range(DIM)]
    vector: Vectors = np.array(values, np.float32)
    return vector
