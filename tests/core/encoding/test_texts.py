"""Cache keys and cache entries."""

import struct
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from isosim.encoders.batching import BatchingPlan
from isosim.encoders.embedding import Embedder
from isosim.encoders.texts import PooledVector, Side
from isosim.encoders.vector_cache import VectorCache, decoded, encoded
from tests.core.encoding.fake_encoder import FakeEncoder, letters

DIM = 7
KEY = b"of the text"
vectors = arrays(np.float32, DIM, elements=st.floats(-60000, 60000, width=32))


@given(
    vector=vectors,
    tokens=st.integers(0, 0xFFFF),
    truncated=st.booleans(),
    unreadable=st.booleans(),
    unknown_hash=st.integers(0, 2**64 - 1),
)
def test_a_vector_comes_back_from_the_cache_bit_by_bit(
    vector: npt.NDArray[np.float32],
    tokens: int,
    truncated: bool,
    unreadable: bool,
    unknown_hash: int,
) -> None:
    found = decoded(KEY, encoded(KEY, PooledVector(vector, tokens, truncated, unreadable, unknown_hash)))
    assert found is not None
    assert (found.vector.tobytes(), found.vector.dtype) == (vector.tobytes(), np.dtype(np.float32))
    assert (found.tokens, found.truncated, found.unreadable) == (tokens, truncated, unreadable)
    assert found.unknown_hash == unknown_hash


@given(entry=st.binary(max_size=48))
def test_what_is_no_entry_of_ours_is_a_miss_and_never_an_error(entry: bytes) -> None:
    assert decoded(KEY, entry) is None


def test_an_entry_with_one_flipped_bit_or_of_another_text_is_a_miss() -> None:
    entry = encoded(KEY, PooledVector(np.ones(DIM, np.float32), 5, True))
    for place in range(8 * len(entry)):
        flipped = bytearray(entry)
        flipped[place // 8] ^= 1 << place % 8
        assert decoded(KEY, bytes(flipped)) is None
    assert decoded(b"of another", entry) is None


def test_more_tokens_than_an_entry_can_say_are_capped() -> None:
    entry = encoded(KEY, PooledVector(np.ones(DIM, np.float32), 70_000, False))
    assert struct.unpack_from("<BBH", entry)[2] == 0xFFFF


texts = st.tuples(st.text(), st.sampled_from(["right", "left"]))


@cache
def embedder(encoder: str) -> Embedder:
    return Embedder(letters, FakeEncoder(), encoder_digest=encoder, cache=VectorCache(0), plan=BatchingPlan())


def key_of(encoder: str, content: str, side: Side = "right") -> bytes:
    return embedder(encoder).key(content, side)


@given(st.lists(st.tuples(st.sampled_from(["digest-1", "digest-2"]), texts), unique=True))
def test_keys_are_equal_only_for_the_same_encoder_side_and_text(cases: list[tuple[str, tuple[str, Side]]]) -> None:
    keys = [key_of(encoder, *text) for encoder, text in cases]
    assert len(set(keys)) == len(keys)
    assert keys == [key_of(encoder, *text) for encoder, text in cases]
    assert {len(key) for key in keys} <= {20}


@pytest.mark.parametrize("one,other", [(("e", "rightx"), ("e\0right", "x")), (("ab", "c"), ("a", "bc"))])
def test_no_two_ways_of_writing_digest_and_text_together_meet(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert key_of(*one) != key_of(*other)


@given(st.text(min_size=4))
def test_a_key_never_holds_the_text(content: str) -> None:
    assert content.encode() not in key_of("digest", content)
