"""Cache keys and entries, the process's own cache, and lookups in a shared one; an encoder's identity."""

import asyncio
import dataclasses
import struct
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from isosim.arrays import Vectors
from isosim.encoders.batching import BatchingPlan
from isosim.encoders.embedding import Embedder
from isosim.encoders.spec import GRAPH_FORMAT, EncoderSpec
from isosim.encoders.texts import Judge, PooledVector, Side
from isosim.encoders.vector_cache import ENTRY_OVERHEAD, LOOKUPS, MOST_KEYS, VectorCache, decoded, encoded
from tests.core.encoding.fake_encoder import FakeEncoder, letters

pytestmark = pytest.mark.anyio
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


COST = 4 * 4 + ENTRY_OVERHEAD  # bytes of an entry of four dimensions
CALLS = st.tuples(st.sampled_from(["get", "put", "put"]), st.integers(0, 9), st.sampled_from([4, 4, 4, 104, 400]))


def cost(entry: PooledVector) -> int:
    return 4 * len(entry.vector) + ENTRY_OVERHEAD


@given(st.sampled_from([0, COST - 1, COST, 3 * COST - 1, 3 * COST, 3 * COST + 1]), st.lists(CALLS, max_size=60))
def test_it_holds_the_first_entry_of_each_key_and_what_was_used_last(
    capacity: int, calls: list[tuple[str, int, int]]
) -> None:
    """Beside a dictionary in order of use."""
    cache, model = VectorCache(capacity), dict[bytes, PooledVector]()
    for call, number, dim in calls:
        key = bytes([number])
        if call == "get":
            assert cache.get(key) is model.get(key)
            if key in model:
                model[key] = model.pop(key)
        else:
            entry = PooledVector(np.full(dim, number, np.float32), number, False)
            cache.put(key, entry)
            if cost(entry) <= capacity:
                model.setdefault(key, entry)
            while sum(map(cost, model.values())) > capacity:
                del model[next(iter(model))]
        assert (len(cache), cache.size) == (len(model), sum(map(cost, model.values())))
    assert all(cache.get(key) is entry for key, entry in model.items())


class Shared:
    """Holds one-letter keys in lower case; answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[list[bytes]] = []
        self.free = asyncio.Event()
        self.free.set()

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self.asked.append(list(keys))
        await self.free.wait()
        return [encoded(key, PooledVector(vector(key), 3, False)) if key.islower() else None for key in keys]

    def put(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        raise AssertionError("a lookup stores nothing")


def vector(key: bytes) -> Vectors:
    return np.full(4, key[0], np.float32)


def read_letters(found: Mapping[bytes, PooledVector]) -> dict[bytes, int]:
    return {key: int(text.vector[0]) for key, text in found.items()}


async def test_what_is_asked_at_once_is_one_lookup_and_each_gets_its_own() -> None:
    shared = Shared()
    lookups = VectorCache(0, shared)
    left = asyncio.create_task(lookups.find([b"x"]))
    others = [asyncio.create_task(lookups.find(keys)) for keys in ([b"a", b"A"], [b"b"])]
    await asyncio.sleep(0)
    left.cancel()  # its caller leaves, and the others get their answers
    assert [read_letters(await other) for other in others] == [{b"a": 97}, {b"b": 98}]
    assert shared.asked == [[b"x", b"a", b"A", b"b"]]


async def test_while_lookups_are_under_way_the_next_one_gathers() -> None:
    shared = Shared()
    shared.free.clear()
    lookups = VectorCache(0, shared)
    tasks = []
    for number in range(LOOKUPS + 3):
        tasks.append(asyncio.create_task(lookups.find([b"%c" % (97 + number)])))
        await asyncio.sleep(0.01)
    assert len(shared.asked) == LOOKUPS
    shared.free.set()
    assert [read_letters(await task) for task in tasks] == [{b"%c" % code: code} for code in range(97, 100 + LOOKUPS)]
    assert [len(keys) for keys in shared.asked] == [1] * LOOKUPS + [3]


async def test_a_lookup_of_several_requests_is_bounded_and_one_alone_is_not() -> None:
    shared = Shared()
    lookups = VectorCache(0, shared)
    sizes = (MOST_KEYS - 1, 2, 2 * MOST_KEYS)
    await asyncio.gather(*(lookups.find([b"a"] * size) for size in sizes))
    assert [len(keys) for keys in shared.asked] == list(sizes)


async def test_texts_are_judged_together_by_the_test_of_each_and_one_that_fails_fails_no_lookup() -> None:
    seen: list[tuple[str, list[float]]] = []

    def judging(name: str) -> Judge:
        def judge(texts: Sequence[PooledVector]) -> None:
            seen.append((name, [float(text.vector[0]) for text in texts]))
            if name == "broken":
                raise ValueError

        return judge

    one, other, broken = judging("one"), judging("other"), judging("broken")
    lookups = VectorCache(0, Shared())
    asked = (([b"a", b"A"], one), ([b"b"], other), ([b"c"], one), ([b"d"], None), ([b"e"], broken), ([b"B"], other))
    found = await asyncio.gather(*(lookups.find(keys, judge) for keys, judge in asked))
    assert [read_letters(texts) for texts in found] == [
        {b"a": 97}, {b"b": 98}, {b"c": 99}, {b"d": 100}, {b"e": 101}, {},
    ]  # fmt: skip
    assert sorted(seen) == [("broken", [101]), ("one", [97, 99]), ("other", [98])]


SPEC = EncoderSpec("somewhere", "w", "t", "mean", 6, 256, "", "fp32", 384, 0)
FIELDS = [field.name for field in dataclasses.fields(EncoderSpec)]


@pytest.mark.parametrize("name", [name for name in FIELDS if name != "source"])
def test_whatever_decides_a_vector_changes_the_digest(name: str) -> None:
    value = getattr(SPEC, name)
    changed: dict[str, Any] = {name: value + 1 if isinstance(value, int) else value + "x"}
    other = dataclasses.replace(SPEC, **changed)
    assert other.digest != SPEC.digest


def test_where_the_weights_came_from_does_not() -> None:
    assert dataclasses.replace(SPEC, source="elsewhere").digest == SPEC.digest


def test_a_release_that_changes_digests_by_accident_would_orphan_every_stored_calibration() -> None:
    assert GRAPH_FORMAT == 1
    assert SPEC.digest == "a58938c69e048dce54113b347a8ee48497df45654386bf3b1f3e5276f3c2f10f"
