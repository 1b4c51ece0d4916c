"""Texts to frozen-encoder vectors, a whole part at a time: what shares a batch depends on the part alone."""

from collections.abc import Iterator, Sequence

import numpy as np

from service.adapters.onnx_engine import OnnxEncoder
from service.adapters.tokenizer import FastTokenizer
from service.core.calibration import Matrix
from service.core.errors import TokenizerFailure
from service.core.texts import Pooled, Tokens, VectorCodec


class Vectors:
    """Tokenizer and encoder of one engine. Safe from several threads."""

    def __init__(
        self, tokenize: FastTokenizer, encode: OnnxEncoder, codec: VectorCodec, prompt: str, batch_tokens: int
    ) -> None:
        self.tokenize, self.encode, self.codec = tokenize, encode, codec
        self.prompt, self.batch_tokens = prompt, batch_tokens

    def __call__(self, texts: Sequence[str]) -> tuple[Matrix, list[Pooled]]:
        """N texts -> (N, D), and each with its tokens. Raises TokenizerFailure or BackendFailure."""
        tokens = self._tokens([self.prompt + text for text in texts])
        lengths = [len(one.ids) for one in tokens]
        vectors: Matrix = np.empty((len(texts), self.encode.dim), np.float32)
        for rows in batches(lengths, self.batch_tokens):
            vectors[rows] = self.encode([tokens[row].ids for row in rows])
        vectors = self.codec.round(vectors)
        every = zip(vectors, tokens, strict=True)
        return vectors, [Pooled(vector, len(one.ids), one.truncated, one.unreadable) for vector, one in every]

    def _tokens(self, texts: list[str]) -> list[Tokens]:
        try:
            found = self.tokenize(texts, "right")
        except TokenizerFailure as error:
            raise TokenizerFailure(f"{error} (one of {len(texts)} rows)") from error
        # A text of nothing but control characters has no tokens where no special ones are added.
        return [one if one.ids else one._replace(ids=[self.encode.pad_token_id]) for one in found]


def batches(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Rows of like length together, at most so many padded tokens a batch; the shortest first, so that the last text
    decides. A single longer text is a batch of its own."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)  # stable: of equals the earlier row first
    batch: list[int] = []
    for row in order:
        if batch and (len(batch) + 1) * lengths[row] > max_tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
