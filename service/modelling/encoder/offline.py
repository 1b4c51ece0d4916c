"""Texts to pooled vectors offline, through the exported graph that also serves."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from service.adapters.encoder.onnx_engine import OnnxEncoder, choose_providers
from service.adapters.encoder.store import EncoderArtifact
from service.adapters.encoder.tokenizer import FastTokenizer
from service.core.arrays import Vectors

BATCH_TOKENS = 2048  # padded; more is no faster on a CPU
TOKENIZED = 4096  # texts tokenized at once, sorted by length among themselves


class Encode(Protocol):
    """What a calibration asks of an encoder: of one in this process, or of many elsewhere."""

    def __call__(self, texts: Sequence[str], progress: Callable[[float], None] = ...) -> Vectors: ...

    def counted(
        self, texts: Sequence[str], progress: Callable[[float], None] = ...
    ) -> tuple[Vectors, npt.NDArray[np.intp]]: ...


def unreadable(texts: Sequence[str], artifact: EncoderArtifact) -> set[str]:
    """The texts without any token that the encoder knows: it gives nearly the same vector to all of them."""
    tokenize = FastTokenizer(artifact.tokenizer, artifact.spec.max_length, artifact.every_prompt)
    blind: set[str] = set()
    for start in range(0, len(texts), TOKENIZED):
        chunk = texts[start : start + TOKENIZED]
        tokens = tokenize([artifact.spec.prompt + text for text in chunk], "right")
        blind.update(text for text, one in zip(chunk, tokens, strict=True) if one.unreadable)
    return blind


class OfflineEncoder:
    """The exported encoder without a server around it."""

    def __init__(self, artifact: EncoderArtifact, threads: int = 0, max_length: int | None = None) -> None:
        spec = artifact.spec
        self.spec = spec
        longest = min(max_length or spec.max_length, spec.max_length)
        self.tokenize = FastTokenizer(artifact.tokenizer, longest, artifact.every_prompt)
        self.encode = OnnxEncoder(
            artifact.encoder, choose_providers((), artifact.calibrator), threads, spec.pad_token_id
        )

    def __call__(self, texts: Sequence[str], progress: Callable[[float], None] = lambda _: None) -> Vectors:
        """N texts -> (N, D); `progress` gets the share done, 0–1, several times a second."""
        return self.counted(texts, progress)[0]

    def counted(
        self, texts: Sequence[str], progress: Callable[[float], None] = lambda _: None
    ) -> tuple[Vectors, npt.NDArray[np.intp]]:
        """The same, with each text's tokens (N,), special ones included."""
        vectors = np.empty((len(texts), self.spec.dim), np.float32)
        counts = np.empty(len(texts), np.intp)
        for start in range(0, len(texts), TOKENIZED):
            chunk = [self.spec.prompt + text for text in texts[start : start + TOKENIZED]]
            # A text of nothing but control characters has no tokens where no special ones are added.
            ids = [tokens.ids or [self.spec.pad_token_id] for tokens in self.tokenize(chunk, "right")]
            counts[start : start + len(ids)] = [len(tokens) for tokens in ids]
            order = sorted(range(len(ids)), key=lambda index: len(ids[index]))
            done = 0
            while done < len(order):
                size = 1
                while done + size < len(order) and (size + 1) * len(ids[order[done + size]]) <= BATCH_TOKENS:
                    size += 1
                rows = order[done : done + size]
                vectors[[start + row for row in rows]] = self.encode([ids[row] for row in rows])
                done += size
                progress((start + done) / len(texts))
        return vectors, counts
