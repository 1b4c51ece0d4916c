"""The process's own cache: least recently used goes first, and never more bytes than allowed."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from isosim.encoders.texts import PooledVector
from isosim.encoders.vector_cache import ENTRY_OVERHEAD, VectorCache

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


def test_an_entry_that_was_used_stays_longer_than_one_put_after_it() -> None:
    cache, entries = VectorCache(3 * COST), [PooledVector(np.zeros(4, np.float32), n, False) for n in range(5)]
    for n in range(3):
        cache.put(bytes([n]), entries[n])
    cache.get(bytes([0]))
    for n in (3, 4):
        cache.put(bytes([n]), entries[n])
    assert [n for n in range(5) if cache.get(bytes([n])) is not None] == [0, 3, 4]
