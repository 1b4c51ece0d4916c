"""Lookups in a shared cache: which go together, and who gets what."""

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from isosim.arrays import Vectors
from isosim.encoders.texts import Judge, PooledVector
from isosim.encoders.vector_cache import LOOKUPS, MOST_KEYS, VectorCache, encoded

pytestmark = pytest.mark.anyio


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


def letters(found: Sequence[PooledVector | None]) -> list[int | None]:
    return [None if text is None else int(text.vector[0]) for text in found]


async def test_what_is_asked_at_once_is_one_lookup_and_each_gets_its_own() -> None:
    shared = Shared()
    lookups = VectorCache(0, shared)
    left = asyncio.create_task(lookups.find([b"x"], None))
    others = [asyncio.create_task(lookups.find(keys, None)) for keys in ([b"a", b"A"], [b"b"])]
    await asyncio.sleep(0)
    left.cancel()  # its caller leaves before the cache is asked
    assert [letters(await other) for other in others] == [[97, None], [98]]
    assert shared.asked == [[b"a", b"A", b"b"]]


async def test_while_lookups_are_under_way_the_next_one_gathers() -> None:
    shared = Shared()
    shared.free.clear()
    lookups = VectorCache(0, shared)
    tasks = []
    for number in range(LOOKUPS + 3):
        tasks.append(asyncio.create_task(lookups.find([b"%c" % (97 + number)], None)))
        await asyncio.sleep(0.01)
    assert len(shared.asked) == LOOKUPS
    shared.free.set()
    assert [letters(await task) for task in tasks] == [[97 + number] for number in range(LOOKUPS + 3)]
    assert [len(keys) for keys in shared.asked] == [1] * LOOKUPS + [3]


async def test_a_lookup_of_several_requests_is_bounded_and_one_alone_is_not() -> None:
    shared = Shared()
    lookups = VectorCache(0, shared)
    sizes = (MOST_KEYS - 1, 2, 2 * MOST_KEYS)
    found = await asyncio.gather(*(lookups.find([b"a"] * size, None) for size in sizes))
    assert [len(one) for one in found] == list(sizes)
    assert [len(keys) for keys in shared.asked] == list(sizes)


async def test_texts_are_judged_together_by_the_test_of_each_and_one_that_fails_fails_no_lookup() -> None:
    seen: list[tuple[str, list[float]]] = []

    def judging(name: str) -> Judge:
        def judge(texts: Sequence[PooledVector], vectors: Vectors) -> None:
            seen.append((name, vectors[:, 0].tolist()))
            if name == "broken":
                raise ValueError

        return judge

    one, other, broken = judging("one"), judging("other"), judging("broken")
    lookups = VectorCache(0, Shared())
    asked = (([b"a", b"A"], one), ([b"b"], other), ([b"c"], one), ([b"d"], None), ([b"e"], broken), ([b"B"], other))
    found = await asyncio.gather(*(lookups.find(keys, judge) for keys, judge in asked))
    assert [letters(texts) for texts in found] == [[97, None], [98], [99], [100], [101], [None]]
    assert sorted(seen) == [("broken", [101]), ("one", [97, 99]), ("other", [98])]


async def test_closing_ends_a_lookup_and_leaves_nobody_waiting() -> None:
    shared = Shared()
    shared.free.clear()
    lookups = VectorCache(0, shared)
    task = asyncio.create_task(lookups.find([b"a"], None))
    await asyncio.sleep(0.01)
    lookups.close()
    assert letters(await asyncio.wait_for(task, 10)) == [None]
