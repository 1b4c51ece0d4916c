"""What is cached is taken, what is under way is shared, and the rest is computed once."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isosim.encoders.batching import BatchingPlan
from isosim.encoders.embedding import Embedder, Embeddings
from isosim.encoders.texts import PooledVector, Side
from isosim.encoders.vector_cache import SharedCache, VectorCache, decoded, encoded
from tests.core.encoding.fake_encoder import FakeEncoder, letters, vector_of

pytestmark = pytest.mark.anyio


class FakeSharedCache:
    """A dictionary that others can reach too."""

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}
        self.holds_next: asyncio.Event | None = None

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        held, self.holds_next = self.holds_next, None
        if held is not None:
            await held.wait()
        return [self.entries.get(key) for key in keys]

    def put(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        self.entries.update(entries)


@pytest.fixture
def encoder() -> FakeEncoder:
    return FakeEncoder()


@contextmanager
def embedder(encode: FakeEncoder, shared: SharedCache | None = None, memory: int = 1 << 20) -> Iterator[Embedder]:
    plan = BatchingPlan(max_batch_tokens=12, max_batch_texts=4, max_queued_texts=1000)
    with Embedder(letters, encode, encoder_digest="e", cache=VectorCache(memory, shared), plan=plan) as made:
        yield made


@settings(max_examples=40)
@given(st.lists(st.lists(st.text("abc", max_size=10, min_size=1), min_size=1, max_size=12), min_size=1, max_size=4))
def test_requests_get_each_text_its_vector_in_order_and_each_is_computed_once(requests: list[list[str]]) -> None:
    encoder = FakeEncoder()

    async def ask_all_at_once() -> None:
        with embedder(encoder) as made:
            answers = await asyncio.gather(*(made.embed(request) for request in requests))
        for request, answer in zip(requests, answers, strict=True):
            assert len(answer.vectors) == len(set(request))
            wanted = [vector_of([ord(letter) for letter in text[:8]]) for text in request]
            np.testing.assert_array_equal(answer.vectors[answer.rows], wanted)
            assert [answer.texts[row].truncated for row in answer.rows] == [len(text) > 8 for text in request]

    asyncio.run(ask_all_at_once())
    computed = len({text for request in requests for text in request})
    assert len(encoder.seen) == computed


COUNTS = ("memory_hits", "shared_hits", "shared_misses", "joined", "computed")


def counts(**some: int) -> tuple[float, ...]:
    """The counts of texts in a request's work; those that are not given are 0."""
    return tuple(some.get(name, 0) for name in COUNTS)


def counted(answer: Embeddings) -> tuple[float, ...]:
    return tuple(getattr(answer, name) for name in COUNTS)


async def test_a_text_under_way_for_one_request_is_not_computed_for_another(encoder: FakeEncoder) -> None:
    with embedder(encoder, memory=0) as made:
        encoder.free.clear()
        tasks = [asyncio.create_task(made.embed(["same", str(n)])) for n in range(3)]
        await asyncio.sleep(0.02)
        encoder.free.set()
        answers = await asyncio.gather(*tasks)
    assert encoder.seen.count("same") == 1
    assert len({answer.vectors[0].tobytes() for answer in answers}) == 1
    assert [answer.tokens for answer in answers] == [5, 1, 1]
    assert [counted(answer) for answer in answers] == [
        counts(computed=2), counts(joined=1, computed=1), counts(joined=1, computed=1)
    ]  # fmt: skip


async def test_a_request_that_joins_a_waiting_text_has_not_waited_for_it_longer_than_it_took(
    encoder: FakeEncoder,
) -> None:
    with embedder(encoder) as made:
        encoder.free.clear()
        held = asyncio.create_task(made.embed(["held"]))
        await asyncio.to_thread(encoder.busy.wait, 10)
        early = asyncio.create_task(made.embed(["same"]))
        await asyncio.sleep(0.3)
        began = time.perf_counter()
        late = asyncio.create_task(made.embed(["same"]))
        await asyncio.sleep(0)
        encoder.free.set()
        joined, took = await late, time.perf_counter() - began
        first = await early
        await held
    assert counted(joined) == counts(joined=1)
    assert first.queue >= 0.3
    assert joined.queue <= took


async def test_the_other_end_cut_off_is_another_text(encoder: FakeEncoder) -> None:
    content = "abcdefghij"
    sides: tuple[Side, Side] = ("right", "left")
    with embedder(encoder) as made:
        found = [await made.embed([content], side) for side in sides]
    assert encoder.seen == ["abcdefgh", "cdefghij"]
    assert [one.texts[0].truncated for one in found] == [True, True]


async def test_computed_remembered_and_shared_vectors_have_the_same_bits(encoder: FakeEncoder) -> None:
    shared = FakeSharedCache()
    texts = ["abc", "abcdefghij"]
    with embedder(encoder, shared=shared) as made:
        computed = await made.embed(texts)
        remembered = await made.embed(texts)
    with embedder(encoder, shared=shared) as another_process:
        read = await another_process.embed(texts)
        again = await another_process.embed(texts)
    for found in (remembered, read, again):
        assert found.vectors.tobytes() == computed.vectors.tobytes()
        assert [text.truncated for text in found.texts] == [text.truncated for text in computed.texts] == [False, True]
    assert len(encoder.seen) == 2
    assert [counted(answer) for answer in (computed, remembered, read, again)] == [
        counts(shared_misses=2, computed=2),
        counts(memory_hits=2),
        counts(shared_hits=2),
        counts(memory_hits=2),
    ]
    exact = np.stack([vector_of([ord(letter) for letter in text[:8]]) for text in texts])
    assert computed.vectors.tobytes() == exact.tobytes()


@pytest.mark.parametrize("garbage", [b"", b"nonsense", b"\x01" * 20, b"\x04" + b"\x02" * 19])
async def test_garbage_in_the_shared_cache_is_a_miss_and_is_replaced(encoder: FakeEncoder, garbage: bytes) -> None:
    shared = FakeSharedCache()
    with embedder(encoder, shared=shared) as made:
        key = made.key("abc")
        shared.entries[key] = garbage
        found = await made.embed(["abc"])
    assert encoder.seen == ["abc"]
    stored = decoded(key, shared.entries[key])
    assert stored is not None
    assert stored.vector.tobytes() == found.vectors[0].tobytes()


async def test_a_text_finished_while_the_shared_cache_was_asked_keeps_its_bits(encoder: FakeEncoder) -> None:
    shared = FakeSharedCache()
    with embedder(encoder, shared=shared) as made:
        answer = shared.holds_next = asyncio.Event()
        slow = asyncio.create_task(made.embed(["abc"]))
        while shared.holds_next is not None:  # noqa: ASYNC110 - until it is asked
            await asyncio.sleep(0)
        first = await made.embed(["abc"])
        of_another_process = PooledVector(first.vectors[0] + np.float32(1), 3, False)
        key = made.key("abc")
        shared.entries[key] = encoded(key, of_another_process)
        answer.set()
        assert (await slow).vectors.tobytes() == first.vectors.tobytes()
    assert encoder.seen == ["abc"]


async def test_timings_say_where_the_time_went_and_count_only_tokens_computed_for_this_request(
    encoder: FakeEncoder,
) -> None:
    with embedder(encoder) as made:
        first = await made.embed(["abc", "abc", "de"])
        second = await made.embed(["abc", "x"])
        third = await made.embed(["abc", "x"])
    assert (first.tokens, second.tokens, third.tokens) == (5, 1, 0)
    for timings in (first, second):
        assert timings.tokenization >= 0
        assert timings.queue >= 0
        assert timings.inference > 0
    assert (third.tokenization, third.queue, third.inference) == (0, 0, 0)


async def test_a_cached_vector_does_not_keep_its_whole_batch_in_memory(encoder: FakeEncoder) -> None:
    with embedder(encoder) as made:
        await made.embed(["a", "b", "c"])
        entry = made.cache.get(made.key("a"))
    assert entry is not None
    assert entry.vector.base is None
