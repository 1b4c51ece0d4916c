"""Cache keys and cache entries."""

import struct

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from isosim.encoders.texts import CHECK, HEADER, KeyMaker, PooledVector, Text, VectorCodec

DIM = 7
KEY = b"of the text"
precisions = pytest.mark.parametrize("precision", ["float32", "float16"])
vectors = arrays(np.float32, DIM, elements=st.floats(-60000, 60000, width=32))


@precisions
@given(
    vector=vectors,
    tokens=st.integers(0, 0xFFFF),
    truncated=st.booleans(),
    unreadable=st.booleans(),
    unknown_hash=st.integers(0, 2**64 - 1),
)
def test_a_rounded_vector_comes_back_from_the_cache_bit_by_bit(
    precision: str,
    vector: npt.NDArray[np.float32],
    tokens: int,
    truncated: bool,
    unreadable: bool,
    unknown_hash: int,
) -> None:
    codec = VectorCodec(precision, DIM)  # type: ignore[arg-type]
    rounded = codec.round(vector[None])[0]
    found = codec.decode(KEY, codec.encode(KEY, PooledVector(rounded, tokens, truncated, unreadable, unknown_hash)))
    assert found is not None
    assert (found.vector.tobytes(), found.vector.dtype) == (rounded.tobytes(), np.dtype(np.float32))
    assert (found.tokens, found.truncated, found.unreadable) == (tokens, truncated, unreadable)
    assert found.unknown_hash == unknown_hash


@precisions
@given(vector=vectors)
def test_rounding_twice_is_rounding_once(precision: str, vector: npt.NDArray[np.float32]) -> None:
    codec = VectorCodec(precision, DIM)  # type: ignore[arg-type]
    once = codec.round(vector[None])
    assert codec.round(once).tobytes() == once.tobytes()


@given(vector=vectors)
def test_full_precision_rounds_nothing_and_half_precision_to_11_bits(vector: npt.NDArray[np.float32]) -> None:
    assert VectorCodec("float32", DIM).round(vector[None]).tobytes() == vector.tobytes()
    np.testing.assert_allclose(VectorCodec("float16", DIM).round(vector[None])[0], vector, rtol=2**-11, atol=2**-25)


def test_an_entry_in_half_precision_takes_half_the_room() -> None:
    pooled = PooledVector(np.zeros(384, np.float32), 5, False)
    full, half = (len(VectorCodec(p, 384).encode(KEY, pooled)) - HEADER.size - CHECK for p in ("float32", "float16"))
    assert (full, half) == (384 * 4, 384 * 2)


@precisions
@given(entry=st.binary(max_size=48))
def test_what_is_no_entry_of_ours_is_a_miss_and_never_an_error(precision: str, entry: bytes) -> None:
    codec = VectorCodec(precision, DIM)  # type: ignore[arg-type]
    assert codec.decode(KEY, entry) is None


def test_entries_of_another_precision_version_or_size_are_misses() -> None:
    pooled = PooledVector(np.ones(DIM, np.float32), 5, True)
    full, half = VectorCodec("float32", DIM), VectorCodec("float16", DIM)
    entry = full.encode(KEY, pooled)
    assert full.decode(KEY, entry) is not None
    assert half.decode(KEY, entry) is None
    assert VectorCodec("float16", 2 * DIM).decode(KEY, entry) is None  # as long, of another version
    assert VectorCodec("float32", DIM + 1).decode(KEY, entry) is None
    assert full.decode(KEY, entry[:-1]) is None
    assert full.decode(KEY, entry + b"\0") is None
    assert full.decode(KEY, bytes([9]) + entry[1:]) is None
    assert full.decode(KEY, b"") is None


@precisions
def test_an_entry_with_one_flipped_bit_or_of_another_text_is_a_miss(precision: str) -> None:
    codec = VectorCodec(precision, DIM)  # type: ignore[arg-type]
    entry = codec.encode(KEY, PooledVector(np.ones(DIM, np.float32), 5, True))
    for place in range(8 * len(entry)):
        flipped = bytearray(entry)
        flipped[place // 8] ^= 1 << place % 8
        assert codec.decode(KEY, bytes(flipped)) is None
    assert codec.decode(b"of another", entry) is None


def test_more_tokens_than_an_entry_can_say_are_capped() -> None:
    codec = VectorCodec("float32", DIM)
    entry = codec.encode(KEY, PooledVector(np.ones(DIM, np.float32), 70_000, False))
    assert struct.unpack_from("<BBH", entry)[2] == 0xFFFF


texts = st.builds(Text, st.text(), st.sampled_from(["right", "left"]))


@given(st.lists(st.tuples(st.sampled_from(["digest-1", "digest-2"]), texts), unique=True))
def test_keys_are_equal_only_for_the_same_encoder_side_and_text(cases: list[tuple[str, Text]]) -> None:
    keys = [KeyMaker(encoder)(text) for encoder, text in cases]
    assert len(set(keys)) == len(keys)
    assert keys == [KeyMaker(encoder)(text) for encoder, text in cases]
    assert {len(key) for key in keys} <= {20}


@pytest.mark.parametrize("one,other", [(("e", "rightx"), ("e\0right", "x")), (("ab", "c"), ("a", "bc"))])
def test_no_two_ways_of_writing_digest_and_text_together_meet(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert KeyMaker(one[0])(Text(one[1])) != KeyMaker(other[0])(Text(other[1]))


@given(st.text(min_size=4))
def test_a_key_never_holds_the_text(content: str) -> None:
    assert content.encode() not in KeyMaker("digest")(Text(content))


def test_a_key_maker_can_be_used_again_and_in_any_order() -> None:
    key = KeyMaker("digest")
    first = key(Text("a"))
    key(Text("b"))
    assert key(Text("a")) == first
