"""Encodes many texts at once.

An exported encoder runs in this process, with the same graph as in isosim's server. A remote encoder runs on its own
server. Vectors that users computed are only read.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from isosim.arrays import Rows, Vectors
from isosim.encoders.batching import BatchingPlan
from isosim.encoders.brought import refuse_texts, vector_of
from isosim.encoders.device import GPU_TOKENS
from isosim.encoders.engines import choose_engine, open_encoder
from isosim.encoders.remote import (
    REQUEST_TEXTS,
    REQUEST_TOKENS,
    REQUESTS,
    RemoteEncoder,
    RemoteTokenizer,
)
from isosim.encoders.spec import Engine
from isosim.encoders.store import EncoderArtifact
from isosim.encoders.texts import PooledVector, Tokens, grouped, rounded_up
from isosim.encoders.tokenizer import FastTokenizer
from isosim.jobs.posted import is_row
from isosim.jobs.vector_files import NpyFile, rows_at

# Padded tokens per batch on a CPU. Larger batches are slower: 2048 tokens took 1.13 times the processor
# time (1.04 to 1.17) and 1.17 times the wall time of 256 tokens. Measured with MiniLM and 2 threads on an Intel Xeon
# (AVX2, AVX-512) that other programs used too; medians over 12 blocks of 1,500 Wikipedia sentences of 31 tokens.
BATCH_TOKENS = 256
PROGRESS_SECONDS = 1.0
REMOTE_SECONDS = 600.0  # time limit (s) of one request of a job, including all attempts
WINDOW = 4096  # number of texts that are tokenized together and sorted by length


@dataclass(frozen=True)
class Encodings:
    """Vectors (N, D) of N texts, and facts about each text. `tokens`: number of tokens, with special ones. `truncated`:
    the text was cut. `unreadable`, `unknown_hash`: see `PooledVector`."""

    vectors: Vectors
    tokens: Rows
    truncated: npt.NDArray[np.bool_]
    unreadable: npt.NDArray[np.bool_]
    unknown_hash: npt.NDArray[np.uint64]

    @classmethod
    def build(cls, count: int, dim: int) -> "Encodings":
        """Arrays for `count` texts, to be filled in."""
        vectors: Vectors = np.empty((count, dim), np.float32)
        no = np.zeros(count, bool)
        return cls(vectors, np.empty(count, np.intp), no, no.copy(), np.zeros(count, np.uint64))

    def texts(self) -> list[PooledVector]:
        """One `PooledVector` per text, for scoring."""
        columns = (self.tokens, self.truncated, self.unreadable, self.unknown_hash)
        facts = zip(*(column.tolist() for column in columns), strict=True)
        return [PooledVector(vector, *own) for vector, own in zip(self.vectors, facts, strict=True)]


class TextEncoder(Protocol):
    """Encodes many texts: in this process, on another server, or by reading vectors that users computed."""

    def __call__(self, texts: Sequence[str], progress: Callable[[float], None] = ...) -> Encodings: ...


def open_texts(artifact: EncoderArtifact, threads: int = 0, **options: Any) -> TextEncoder:
    """Opens an encoder for many texts: in this process, with the options of `OfflineEncoder`, or on another server.

    Raises:
        InvalidInput: users of this encoder compute the vectors themselves.
    """
    refuse_texts(artifact)
    if artifact.remote is None:
        return OfflineEncoder(artifact, threads, **options)
    return RemoteTexts(artifact)


class RemoteTexts:
    """Encodes many texts on another server, with parallel requests.

    Each request also carries a probe, a text whose vector shows whether the server still runs the registered model.
    """

    def __init__(self, artifact: EncoderArtifact) -> None:
        self.encoder = RemoteEncoder(artifact, seconds=REMOTE_SECONDS, patient=True)
        self.tokenize = RemoteTokenizer(artifact.id, artifact.spec.max_length)
        self.prompt = artifact.spec.prompt

    def __call__(self, texts: Sequence[str], progress: Callable[[float], None] = lambda _: None) -> Encodings:
        """Encodes the texts. Calls `progress` with the share of finished texts, 0–1. Raises the errors of
        `RemoteEncoder.run`."""
        encodings = Encodings.build(len(texts), self.encoder.dim)
        tokens = self.tokenize([self.prompt + text for text in texts], "right")
        encodings.tokens[:] = [len(one.ids) for one in tokens]
        encodings.truncated[:] = [one.truncated for one in tokens]
        done = 0
        pool = ThreadPoolExecutor(REQUESTS)
        running = {
            pool.submit(self.encoder.run, self.encoder.prepare([tokens[row].ids for row in rows])): rows
            for rows in requests_of(encodings.tokens)
        }
        try:
            while running:
                ended, _ = wait(running, PROGRESS_SECONDS, FIRST_COMPLETED)
                for future in ended:
                    rows = running.pop(future)
                    encodings.vectors[rows] = future.result()
                    done += len(rows)
                progress(done / len(texts))  # raises an error if the job must end
        except BaseException:
            self.encoder.close()
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        return encodings


def requests_of(lengths: Rows) -> Iterator[list[int]]:
    """Yields the rows of each request, in order: at most REQUEST_TEXTS rows with at most REQUEST_TOKENS tokens in all.

    A text with more than REQUEST_TOKENS tokens has a request of its own.
    """
    return grouped(range(len(lengths)), lambda row: int(lengths[row]), REQUEST_TEXTS, REQUEST_TOKENS)


class OfflineEncoder:
    """Tokenizer and encoder in this process. Texts of similar length share a batch. Thread-safe.

    Args:
        threads: threads of one run; 0 means one per physical core.
        engine: None uses the one of the encoder's number format, or a GPU if there is one.
        batch_tokens: padded tokens per batch; 0 means the device's default. Changes the last bits of vectors.
        window: number of texts that are sorted by length together. None means all texts of a call.
    """

    def __init__(
        self,
        artifact: EncoderArtifact,
        threads: int = 0,
        *,
        engine: Engine | None = None,
        batch_tokens: int = 0,
        window: int | None = WINDOW,
    ) -> None:
        spec = artifact.spec
        engine = engine or choose_engine(None, artifact)
        self.prompt, self.window = spec.prompt, window
        self.batch_tokens = batch_tokens or default_batch_tokens(gpu=engine == "cuda")
        self.tokenize = FastTokenizer(artifact.tokenizer, spec.max_length, artifact.every_prompt)
        self.encode = open_encoder(artifact.encoder, spec, engine, BatchingPlan(threads=threads))

    def __call__(self, texts: Sequence[str], progress: Callable[[float], None] = lambda _: None) -> Encodings:
        """Encodes the texts. After each batch, calls `progress` with the share of finished texts, 0–1.

        Raises:
            TokenizerFailure: a text cannot be tokenized.
            BackendFailure: the encoder failed.
        """
        encodings = Encodings.build(len(texts), self.encode.dim)
        for start in range(0, len(texts), self.window or max(1, len(texts))):
            rows = slice(start, start + self.window if self.window else None)
            self._fill(encodings, start, texts[rows], lambda done: progress(done / len(texts)))
        return encodings

    def _fill(self, encodings: Encodings, start: int, texts: Sequence[str], progress: Callable[[int], None]) -> None:
        """Encodes one window of texts. `start` is the row of the first text in `encodings`. After each batch, calls
        `progress` with the number of finished texts, including earlier windows."""
        tokens = self.tokenize([self.prompt + text for text in texts], "right")
        # A text of control characters may have no tokens. It gets the padding token, because the encoder needs at least
        # one token.
        ids = [one.ids or [self.encode.pad_token_id] for one in tokens]
        rows = slice(start, start + len(texts))
        encodings.tokens[rows] = [len(one) for one in ids]
        encodings.truncated[rows] = [one.truncated for one in tokens]
        encodings.unreadable[rows] = [one.unreadable for one in tokens]
        encodings.unknown_hash[rows] = [one.unknown_hash for one in tokens]
        done = start
        for batch in batches([len(one) for one in ids], self.batch_tokens, self.encode.same_length):
            encodings.vectors[[start + row for row in batch]] = self.encode([ids[row] for row in batch])
            done += len(batch)
            progress(done)


class BroughtItems:
    """A `TextEncoder` for vectors that users computed. Its `texts` are not texts: each is a vector in base64, or the
    number (from 0) of a row in `file`. All were checked when they were posted (`Intake`)."""

    def __init__(self, artifact: EncoderArtifact, file: NpyFile | None = None) -> None:
        self.dim, self.file = artifact.spec.dim, file

    def __call__(self, texts: Sequence[str], progress: Callable[[float], None] = lambda _: None) -> Encodings:
        encodings = Encodings.build(len(texts), self.dim)
        encodings.tokens[:] = 0
        named = [place for place, text in enumerate(texts) if is_row(text)]
        if self.file is not None:
            encodings.vectors[named] = rows_at(self.file, [int(texts[place]) for place in named])
        for place in sorted({*range(len(texts))} - {*named}):
            encodings.vectors[place] = vector_of(texts[place])
        progress(1.0)
        return encodings


def default_batch_tokens(*, gpu: bool) -> int:
    """Padded tokens per batch if no setting gives a number."""
    return GPU_TOKENS if gpu else BATCH_TOKENS


def batches(lengths: Sequence[int], max_tokens: int, same_length: int = 0) -> Iterator[list[int]]:
    """Yields batches (lists of rows) of texts with similar length, each of at most `max_tokens` padded tokens. A text
    with more than `max_tokens` tokens has a batch of its own.

    Rows are sorted by length, the shortest first. Each text is padded to the length of the longest text in its batch.
    With `same_length`, lengths are rounded up to a multiple of it, and a batch has only rows of one rounded length.
    """
    if same_length:
        lengths = [rounded_up(length, same_length) for length in lengths]
    order = sorted(range(len(lengths)), key=lengths.__getitem__)  # stable: rows of equal length keep their order
    batch: list[int] = []
    for row in order:
        other = bool(batch and same_length) and lengths[row] != lengths[batch[0]]
        if batch and (other or (len(batch) + 1) * lengths[row] > max_tokens):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def find_unknown(texts: Sequence[str], artifact: EncoderArtifact) -> dict[str, Tokens]:
    """The texts that are unreadable or hold the unknown token. Empty if the encoder's tokenizer is not in this
    process."""
    if artifact.kind != "onnx":
        return {}
    tokenize = FastTokenizer(artifact.tokenizer, artifact.spec.max_length, artifact.every_prompt)
    found: dict[str, Tokens] = {}
    for start in range(0, len(texts), WINDOW):
        chunk = texts[start : start + WINDOW]
        tokens = zip(chunk, tokenize([artifact.spec.prompt + text for text in chunk], "right"), strict=True)
        found.update((text, one) for text, one in tokens if one.unreadable or one.unknown_hash)
    return found


def find_unreadable(texts: Sequence[str], artifact: EncoderArtifact) -> set[str]:
    """The texts of which the encoder knows too few words (`FastTokenizer`)."""
    return {text for text, one in find_unknown(texts, artifact).items() if one.unreadable}
