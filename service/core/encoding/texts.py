"""A text on its way through the encoder, and the vector that comes out."""

import hashlib
import logging
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from service.core.arrays import Vectors
from service.core.errors import TokenizerFailure

log = logging.getLogger(__name__)

Side = Literal["right", "left"]  # the end of the text that truncation takes away


class Tokens(NamedTuple):
    ids: Sequence[int]
    truncated: bool
    unreadable: bool = False  # none of them is a known one: only special and unknown tokens


Content = str | tuple[int, ...]  # a text, or the tokens that a caller has made of it, special ones included
Tokenize = Callable[[Sequence[Content], Side], list[Tokens]]


class Verdict(NamedTuple):
    """What a domain's test has said of a text."""

    test: object  # its identity: the test itself would stay in memory with the text
    p_value: float  # share of the domain's own sentences that are at least as odd
    distance: float  # log ‖z‖² for its length, in the domain's standard deviations from its mean


@dataclass(eq=False, slots=True)
class PooledVector:
    """A text's frozen-encoder vector (D,), its tokens (special ones included), and whether it was cut.

    `unreadable`: no token of it is known, so that other texts have the same vector. `verdict` is of the domain test
    that looked last.
    """

    vector: npt.NDArray[np.float32]
    tokens: int
    truncated: bool
    unreadable: bool = False
    verdict: Verdict | None = None


# Leaves verdicts on texts, whose vectors (N, D) are given.
Judge = Callable[[Sequence[PooledVector], Vectors], object]


def judge_together(texts: Iterable[tuple[Judge | None, PooledVector | None]]) -> None:
    """One look of each domain's test at all of its texts: one by one they cost it four times as much.

    A test that fails is asked again where the request is scored, which then fails.
    """
    texts_of: dict[int, tuple[Judge, list[PooledVector]]] = {}
    for judge, text in texts:
        if judge is not None and text is not None:
            texts_of.setdefault(id(judge), (judge, []))[1].append(text)
    for judge, own in texts_of.values():
        try:
            judge(own, np.array([text.vector for text in own]))
        except Exception:  # of no text's making, and other domains' texts are among them
            log.exception("texts could not be judged together")


class Text(NamedTuple):
    """A text and what a request may change about its encoding. It is its own identity."""

    content: Content
    side: Side = "right"


class KeyMaker:
    """Cache keys: encoder digest, truncation side and the text, hashed; the text itself never leaves."""

    def __init__(self, encoder_digest: str) -> None:
        self.prefix = {
            side: hashlib.blake2b(f"{encoder_digest}\0{side}\0".encode(), digest_size=20) for side in ("right", "left")
        }

    def __call__(self, text: Text) -> bytes:  # 20 bytes
        """Raises TokenizerFailure where the text is no Unicode: JSON can spell half of a surrogate pair."""
        key = self.prefix[text.side].copy()
        if isinstance(text.content, tuple):
            key.update(b"\xff" + np.array(text.content, "<i8").tobytes())  # no text begins with 0xff in UTF-8
            return key.digest()
        try:
            key.update(text.content.encode())
        except UnicodeEncodeError:
            raise TokenizerFailure("a text holds a lone surrogate, which is no Unicode") from None
        return key.digest()


HEADER = struct.Struct("<BBH")
TRUNCATED, UNREADABLE = 1, 2  # bits of the flag byte
CHECK = 8  # bytes


class VectorCodec:
    """Cache entries: a version byte that names the precision, a flag byte, the token count, the vector, a checksum.

    The checksum is of the entry and of its key: what was changed on its way, or belongs to another text, is no entry.
    Every vector passes through `round` before it is used, so that a hit and a miss give the same bits.
    """

    def __init__(self, precision: Literal["float32", "float16"], dim: int) -> None:
        self.exact = precision == "float32"
        self.version = {"float32": 5, "float16": 6}[precision]  # 3 and 4 did not say `unreadable`; 1, 2: no checksum
        self.dtype: np.dtype[np.floating] = np.dtype({"float32": "<f4", "float16": "<f2"}[precision])
        self.dim = dim

    def round(self, vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:  # (N, D) -> (N, D)
        return vectors if self.exact else vectors.astype(self.dtype).astype(np.float32)

    def encode(self, key: bytes, pooled: PooledVector) -> bytes:
        flags = TRUNCATED * pooled.truncated | UNREADABLE * pooled.unreadable
        header = HEADER.pack(self.version, flags, min(pooled.tokens, 0xFFFF))
        entry = header + pooled.vector.astype(self.dtype).tobytes()
        return entry + checksum(key, entry)

    def decode(self, key: bytes, entry: bytes) -> PooledVector | None:
        """None where the entry is not what was stored under the key by one of us: another version, size or content."""
        if len(entry) != HEADER.size + self.dim * self.dtype.itemsize + CHECK:
            return None
        version, flags, tokens = HEADER.unpack_from(entry)
        if version != self.version or entry[-CHECK:] != checksum(key, entry[:-CHECK]):
            return None
        vector = np.frombuffer(entry, self.dtype, self.dim, offset=HEADER.size).astype(np.float32)
        return PooledVector(vector, tokens, bool(flags & TRUNCATED), bool(flags & UNREADABLE))


def checksum(key: bytes, entry: bytes) -> bytes:  # CHECK bytes
    return hashlib.blake2b(entry, digest_size=CHECK, key=key).digest()


class SharedCache(Protocol):
    """A vector cache beyond this process. It never fails: an error is a miss."""

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]: ...

    def put(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """Returns at once; storing happens behind."""
