"""The process's own cache: least recently used goes first, and never more bytes than allowed."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from isosim.encoders.texts import PooledVector
from isosim.encoders.vector_cache import ENTRY_OVERHEAD, VectorCache

COST = 4 * 4 + ENTRY_OVERHEAD  # bytes of an entry of four dimensions


def entry(number: int, dim: int = 4) -> PooledVector:
    return PooledVector(np.full(dim, number, np.float32), number, False)


def key(number: int) -> bytes:
    return number.to_bytes(2, "big")


def held(cache: VectorCache, numbers: range) -> list[int]:
    return [number for number in numbers if cache.get(key(number)) is not None]


def test_the_least_recently_used_entry_goes_first() -> None:
    cache = VectorCache(3 * COST)
    for number in range(3):
        cache.put(key(number), entry(number))
    cache.get(key(0))
    cache.put(key(3), entry(3))
    cache.put(key(4), entry(4))
    assert held(cache, range(5)) == [0, 3, 4]


def test_what_was_put_is_what_is_got() -> None:
    cache = VectorCache(10 * COST)
    stored = entry(7)
    cache.put(key(7), stored)
    assert cache.get(key(7)) is stored
    assert cache.get(key(8)) is None


def test_the_first_entry_of_a_key_stays() -> None:
    cache = VectorCache(10 * COST)
    first = entry(1)
    cache.put(key(1), first)
    cache.put(key(1), entry(2))
    assert cache.get(key(1)) is first
    assert cache.size == COST


def test_one_byte_short_of_room_for_three_is_room_for_two() -> None:
    cache = VectorCache(3 * COST - 1)
    for number in range(3):
        cache.put(key(number), entry(number))
    assert held(cache, range(3)) == [1, 2]


def test_a_cache_of_no_capacity_holds_nothing() -> None:
    cache = VectorCache(0)
    cache.put(key(1), entry(1))
    assert cache.get(key(1)) is None
    assert (len(cache), cache.size) == (0, 0)


def test_an_entry_larger_than_the_cache_does_not_empty_it() -> None:
    cache = VectorCache(2 * COST)
    cache.put(key(1), entry(1))
    cache.put(key(2), entry(2, dim=1000))
    assert held(cache, range(3)) == [1]


@given(
    st.integers(0, 5000),
    st.lists(st.tuples(st.sampled_from(["get", "put"]), st.integers(0, 9), st.integers(1, 300)), max_size=60),
)
def test_its_bytes_are_counted_right_and_never_exceed_the_capacity(
    capacity: int, calls: list[tuple[str, int, int]]
) -> None:
    cache = VectorCache(capacity)
    for call, number, dim in calls:
        if call == "put":
            cache.put(key(number), entry(number, dim))
        else:
            cache.get(key(number))
        assert cache.size <= capacity
        stored = [found for n in range(10) if (found := cache._entries.get(key(n))) is not None]
        assert cache.size == sum(found.vector.nbytes + ENTRY_OVERHEAD for found in stored)
        assert len(cache) == len(stored)
