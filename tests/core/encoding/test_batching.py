"""Admission, order, cancellation, failure and end of the batcher, through the embedder; which texts share a batch."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isosim.arrays import Vectors
from isosim.encoders.batching import MIN_FILL, WINDOW, BatchingPlan, PendingText, pack
from isosim.encoders.embedding import Embedder, Embeddings
from isosim.encoders.texts import Judge, PooledVector, Side, Tokens
from isosim.encoders.vector_cache import VectorCache
from isosim.errors import (
    BackendFailure,
    CallerLeft,
    EncoderChanged,
    EncoderUnreachable,
    IsosimError,
    NotReady,
    Overloaded,
    TokenizerFailure,
)
from tests.core.encoding.fake_encoder import FakeEncoder, letters, vector_of
from tests.processes import wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture
def encoder() -> FakeEncoder:
    return FakeEncoder()


@contextmanager
def embedder(encode: Any, tokenize: Any = letters, **options: Any) -> Iterator[Embedder]:
    chosen = {"max_batch_tokens": 1000, "max_batch_texts": 1, "max_queued_texts": 100, "max_wait": 60.0} | options
    plan = BatchingPlan(**{name: chosen.pop(name) for name in list(chosen) if name in BatchingPlan.__slots__})
    with Embedder(
        tokenize, encode, encoder_digest="e", cache=VectorCache(0),
        plan=plan, **chosen,
    ) as made:  # fmt: skip
        try:
            wait_until(lambda: made.batcher._idle == plan.runs + plan.ahead, 10, every=0.001)  # all threads run
            yield made
        finally:
            if isinstance(encode, FakeEncoder):
                encode.free.set()


async def soon(coroutine: Awaitable[Embeddings]) -> Embeddings:
    """A hang is a failure."""
    async with asyncio.timeout(10):
        return await coroutine


async def vectors(made: Embedder, *texts: str) -> Vectors:
    found = await soon(made.embed(texts))
    return found.vectors[found.rows]


def expected(*texts: str) -> Vectors:
    return np.stack([vector_of([ord(letter) for letter in text]) for text in texts])


async def under_way(made: Embedder, *texts: str) -> "asyncio.Task[Vectors]":
    """A request that has been admitted and not been answered."""
    task = asyncio.create_task(vectors(made, *texts))
    await asyncio.sleep(0)  # without a shared cache the task's first wait is the one for its vectors
    return task


async def hold(made: Embedder, encoder: FakeEncoder) -> "asyncio.Task[Vectors]":
    """A request inside the encoder, that keeps it busy until `free` is set."""
    encoder.free.clear()
    task = await under_way(made, "first")
    assert await asyncio.to_thread(encoder.busy.wait, 10)
    return task


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - threads tell nobody
            await asyncio.sleep(0.001)


async def idle(made: Embedder) -> None:
    await until(lambda: not made.batcher.queued)


async def test_texts_that_wait_while_the_encoder_is_busy_run_together(encoder: FakeEncoder) -> None:
    lengths: list[Sequence[int]] = []
    with embedder(encoder, max_batch_texts=8, on_batch=lengths.append) as made:
        tasks = [await hold(made, encoder)] + [await under_way(made, text) for text in ("aa", "bb", "cc")]
        encoder.free.set()
        await asyncio.gather(*tasks)
    assert [sorted(batch) for batch in encoder.batches] == [["first"], ["aa", "bb", "cc"]]
    assert lengths == [[5], [2, 2, 2]]


async def test_texts_run_in_order_of_arrival_where_they_cannot_share_a_batch(encoder: FakeEncoder) -> None:
    texts = ["aaaaaaa", "b", "ccc", "dd", "eeeeee"]
    with embedder(encoder) as made:
        tasks = [await hold(made, encoder)] + [await under_way(made, text) for text in texts]
        encoder.free.set()
        await asyncio.gather(*tasks)
    assert encoder.seen == ["first", *texts]


async def test_a_full_queue_refuses_instead_of_waiting_and_computes_none_of_the_request(encoder: FakeEncoder) -> None:
    with embedder(encoder, max_queued_texts=3) as made:
        tasks = [await hold(made, encoder), await under_way(made, "second")]
        with pytest.raises(Overloaded, match="the limit is 3") as raised:
            await vectors(made, "second", "third", "fourth")  # shares a text that stays
        assert raised.value.retry_after >= 1
        assert made.batcher.queued == 2
        encoder.free.set()
        np.testing.assert_array_equal((await asyncio.gather(*tasks))[1], expected("second"))
        await idle(made)
        assert encoder.seen == ["first", "second"]
        np.testing.assert_array_equal(await vectors(made, "third", "fourth"), expected("third", "fourth"))


async def test_a_caller_who_leaves_does_not_hurt_another_who_shares_the_text(encoder: FakeEncoder) -> None:
    with embedder(encoder) as made:
        first, gone = await hold(made, encoder), await under_way(made, "shared", "own", "again")
        stays = asyncio.create_task(vectors(made, "shared"))
        await asyncio.sleep(0.01)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        late = asyncio.create_task(vectors(made, "shared", "again"))
        await asyncio.sleep(0.01)
        encoder.free.set()
        np.testing.assert_array_equal(await stays, expected("shared"))
        np.testing.assert_array_equal(await late, expected("shared", "again"))
        await first
        await idle(made)
    assert encoder.seen == ["first", "shared", "again"]


class Breaks(FakeEncoder):
    """Fails on a batch with an exclamation mark in it."""

    def __init__(self, how: Exception | None) -> None:
        super().__init__()
        self.how = how

    def run(self, prepared: Any, *, exclusive: bool = False) -> Vectors:
        found = super().run(prepared)
        if not any(ord("!") in row for row in prepared):
            return found
        if self.how is None:
            return found[:0]  # fewer vectors than texts
        raise self.how


@pytest.mark.parametrize("how", [RuntimeError("boom"), BackendFailure("NaN"), MemoryError(), None], ids=repr)
@pytest.mark.parametrize("max_batch_texts", [1, 8])
async def test_a_text_the_encoder_fails_on_is_the_only_one_to_fail(
    how: Exception | None, max_batch_texts: int, caplog: pytest.LogCaptureFixture
) -> None:
    encoder = Breaks(how)
    with embedder(encoder, max_batch_texts=max_batch_texts) as made:
        tasks = [await hold(made, encoder)] + [await under_way(made, text) for text in ("good", "bad!", "fine")]
        encoder.free.set()
        with pytest.raises(BackendFailure):
            await tasks[2]
        np.testing.assert_array_equal(await tasks[1], expected("good"))
        np.testing.assert_array_equal(await tasks[3], expected("fine"))
        await tasks[0]
        await idle(made)
        assert made.batcher.alive
    # An operator sees why a batch ran again, for example for lack of the GPU's memory.
    assert ("a batch of 3 texts failed, so they run one by one: " in caplog.text) == (max_batch_texts > 1)


class Away(FakeEncoder):
    """Fails whatever it is given, at any batch."""

    def __init__(self, how: IsosimError) -> None:
        super().__init__()
        self.how, self.runs = how, 0

    def run(self, prepared: Any, *, exclusive: bool = False) -> Vectors:
        self.runs += 1
        raise self.how


@pytest.mark.parametrize("how", [EncoderUnreachable("away"), EncoderChanged("another"), Overloaded("full", 7)])
async def test_a_failure_that_is_no_texts_fault_is_told_to_all_of_the_batch_at_once(how: IsosimError) -> None:
    away = Away(how)
    with embedder(away, max_batch_texts=8) as made:
        made.batcher.rate = 1e4
        with pytest.raises(type(how)) as error:
            await vectors(made, "aaa", "bbb", "ccc")
        assert away.runs == 1
        assert vars(error.value) == vars(how)  # `retry_after` among them
        assert made.batcher.rate == 1e4  # a failure is no sign of speed


async def test_the_texts_of_a_request_to_another_server_go_out_together_whatever_their_lengths(
    encoder: FakeEncoder,
) -> None:
    with embedder(encoder, runs=4, max_batch_texts=8, remote=True) as made:
        await vectors(made, "a", "b" * 40, "c" * 300)
    assert [len(batch) for batch in encoder.batches] == [3]


def picky(how: BaseException) -> Any:
    def tokenize(texts: Sequence[str], side: Side) -> list[Tokens]:
        if any("?" in text for text in texts):
            raise how
        return letters(texts, side)

    return tokenize


@pytest.mark.parametrize(
    ("tokenize", "bad", "said"),
    [
        (picky(TokenizerFailure("no tokens")), "bad?", "no tokens"),
        (picky(ValueError("unforeseen")), "bad?", "unforeseen"),
        (letters, "", "no tokens"),  # a tokenizer that adds no special tokens makes none of control characters
    ],
)
async def test_a_text_that_cannot_be_tokenized_is_the_only_one_to_fail(
    encoder: FakeEncoder, tokenize: Any, bad: str, said: str
) -> None:
    with embedder(encoder, tokenize) as made:
        tasks = [asyncio.create_task(vectors(made, text)) for text in ("one", bad, "two")]
        with pytest.raises(TokenizerFailure, match=said):
            await tasks[1]
        np.testing.assert_array_equal(await tasks[0], expected("one"))
        np.testing.assert_array_equal(await tasks[2], expected("two"))
        await idle(made)
        assert made.batcher.alive


class Panic(BaseException):
    """What a tokenizer written in Rust raises."""


async def test_when_a_thread_dies_everybody_who_waits_is_told_and_nobody_is_let_in(encoder: FakeEncoder) -> None:
    with embedder(encoder, picky(Panic()), runs=3) as made:
        waiting = [await hold(made, encoder), await under_way(made, "second")]
        with pytest.raises(NotReady):
            await vectors(made, "bad?")
        for task in waiting:
            with pytest.raises(NotReady):
                await task
        assert not made.batcher.alive
        with pytest.raises(NotReady):
            await vectors(made, "late")


async def test_a_run_that_hangs_lets_nobody_in(encoder: FakeEncoder) -> None:
    with embedder(encoder, hung_after=0.05) as made:
        task = await hold(made, encoder)
        async with asyncio.timeout(10):
            while made.batcher.alive:  # noqa: ASYNC110 - it says so to nobody
                await asyncio.sleep(0.01)
        with pytest.raises(NotReady):
            await vectors(made, "late")
        encoder.free.set()
        await task
        assert made.batcher.alive


async def test_stopping_answers_everybody_who_waits(encoder: FakeEncoder) -> None:
    with embedder(encoder) as made:
        tasks = [await hold(made, encoder), await under_way(made, "second"), await under_way(made, "third")]
        threading.Timer(0.1, encoder.free.set).start()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results[1:]] == [NotReady, NotReady]
    assert isinstance(results[0], np.ndarray | NotReady)
    with pytest.raises(NotReady):
        await vectors(made, "late")


async def test_the_texts_of_a_pair_run_side_by_side_on_an_idle_device(encoder: FakeEncoder) -> None:
    with embedder(encoder, runs=2, max_batch_texts=8) as made:
        np.testing.assert_array_equal(await vectors(made, "one", "two"), expected("one", "two"))
    assert sorted(map(len, encoder.batches)) == [1, 1]


class ObservedEncoder(FakeEncoder):
    """Remembers which batches ran alone, and how many ran at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.running, self.most = 0, 0
        self.exclusive: list[bool] = []
        self.prepared: list[int] = []
        self.lock = threading.Lock()

    def prepare(self, ids: Sequence[Sequence[int]]) -> Any:
        self.prepared.append(len(ids))
        return ids

    def run(self, prepared: Any, *, exclusive: bool = False) -> Vectors:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
            self.exclusive.append(exclusive)
        try:
            return super().run(prepared)
        finally:
            with self.lock:
                self.running -= 1


async def test_a_lone_pair_has_the_device_to_itself_and_what_comes_meanwhile_waits_and_shares_it() -> None:
    encoder = ObservedEncoder()
    with embedder(encoder, runs=2, threads_alone=2, max_batch_texts=2) as made:
        encoder.free.clear()
        first = await under_way(made, "one", "two")
        assert await asyncio.to_thread(encoder.busy.wait, 10)
        others = [await under_way(made, text) for text in ("aa", "bb", "cc", "dd", "ee")]
        assert encoder.running == 1
        encoder.free.set()
        await asyncio.gather(first, *others)
    assert encoder.exclusive[0]
    assert not all(encoder.exclusive)
    assert sorted(encoder.batches[0]) == ["one", "two"]


@pytest.mark.parametrize(
    ("pair", "alone"), [(("four", "five"), True), (("one", "four"), True), (("four", "sixsix"), False)]
)
async def test_texts_that_cannot_share_a_batch_run_side_by_side(pair: tuple[str, str], *, alone: bool) -> None:
    encoder = ObservedEncoder()
    with embedder(encoder, runs=2, threads_alone=2, same_length=4, max_batch_texts=8) as made:
        encoder.free.clear()
        task = await under_way(made, *pair)
        await until(lambda: sum(encoder.prepared) == 2)
        encoder.free.set()
        await task
    assert encoder.exclusive == ([True] if alone else [False, False])
    assert sorted(map(len, encoder.batches)) == ([2] if alone else [1, 1])


async def test_beside_a_calibration_no_run_waits_for_all_cores() -> None:
    encoder = ObservedEncoder()
    with embedder(encoder, runs=2, threads_alone=2) as made:
        made.batcher.cpu_contended = True
        await vectors(made, "one", "two")
    assert not any(encoder.exclusive)


async def test_no_more_batches_run_at_once_than_the_plan_has_runs_and_one_is_prepared_meanwhile() -> None:
    encoder = ObservedEncoder()
    with embedder(encoder, runs=1, ahead=1) as made:
        tasks = [await hold(made, encoder), await under_way(made, "second")]
        await until(lambda: len(encoder.prepared) == 2)
        tasks.append(await under_way(made, "third"))
        assert encoder.running == 1
        encoder.free.set()
        await asyncio.gather(*tasks)
    assert encoder.most == 1
    assert encoder.seen == ["first", "second", "third"]


async def test_a_newcomer_that_would_wait_too_long_is_refused_and_told_how_long(encoder: FakeEncoder) -> None:
    with embedder(encoder, max_wait=0.5, free_size=0, free_requests=0) as made:
        tasks = [await hold(made, encoder), await under_way(made, "second")]
        made.batcher.rate = made.batcher.queued_size / 20  # twenty seconds' worth is queued
        with pytest.raises(Overloaded, match=r"20\.0 s") as raised:
            await vectors(made, "third")
        assert raised.value.retry_after == 20
        made.batcher.rate = made.batcher.queued_size / 0.4
        tasks.append(await under_way(made, "fourth"))
        encoder.free.set()
        await asyncio.gather(*tasks)
        await idle(made)
        assert made.batcher.queued_size == 0


@pytest.mark.parametrize(
    ("free", "taken", "refused", "late"),
    [
        ({"free_size": 100, "free_requests": 0}, ["b" * 50, "c" * 50], "d", []),  # few texts never wait too long
        ({"free_size": 0, "free_requests": 2}, ["b" * 150, "c" * 150], "d" * 50, ["e" * 300]),  # nor do large requests
    ],
)
async def test_a_slow_device_refuses_neither_few_texts_nor_a_large_request_among_others_of_its_size(
    encoder: FakeEncoder, free: dict[str, int], taken: list[str], refused: str, late: list[str]
) -> None:
    with embedder(encoder, max_wait=0.5, **free) as made:
        tasks = [await hold(made, encoder)]
        made.batcher.rate = 1.0  # the queue takes a minute and more
        tasks += [await under_way(made, text) for text in taken]
        with pytest.raises(Overloaded):
            await vectors(made, refused)
        tasks += [await under_way(made, text) for text in late]
        encoder.free.set()
        await asyncio.gather(*tasks)


async def test_what_a_caller_who_left_asked_for_is_not_computed(encoder: FakeEncoder) -> None:
    leaves: list[Callable[[], None]] = []

    def watch(left: Callable[[], None]) -> Callable[[], None]:
        leaves.append(left)
        return leaves.clear

    with embedder(encoder) as made:
        first = await hold(made, encoder)
        gone = asyncio.create_task(made.embed(["abandoned"], watch=watch))
        await asyncio.sleep(0.01)
        leaves[0]()
        with pytest.raises(CallerLeft):
            await soon(gone)
        assert not leaves
        encoder.free.set()
        await first
        await idle(made)
    assert encoder.seen == ["first"]


async def test_texts_of_a_batch_are_judged_together_and_a_test_that_fails_fails_no_text(encoder: FakeEncoder) -> None:
    seen: list[Sequence[PooledVector]] = []

    def broken(_: Sequence[PooledVector]) -> None:
        raise ValueError

    with embedder(encoder, max_batch_texts=8) as made:
        first = await hold(made, encoder)
        judges: list[Judge | None] = [seen.append, seen.append, None, broken]
        judges[1] = judges[0]
        later = [
            asyncio.create_task(made.embed([text], judge=judge)) for text, judge in zip("abcd", judges, strict=True)
        ]
        encoder.free.set()
        await asyncio.gather(first, *later)
    (judged,) = seen
    np.testing.assert_array_equal(np.stack([text.vector for text in judged]), expected("a", "b"))


async def test_no_more_texts_are_tokenized_at_once_than_a_batch_is_chosen_from(encoder: FakeEncoder) -> None:
    counts: list[int] = []

    def tokenize(texts: Sequence[Any], side: Side) -> list[Tokens]:
        counts.append(len(texts))
        return letters(texts, side)

    with embedder(encoder, tokenize, max_batch_texts=500, max_batch_tokens=10**6, max_queued_texts=10**4) as made:
        tasks = [await hold(made, encoder), await under_way(made, *(f"{n:05}" for n in range(WINDOW + 300)))]
        encoder.free.set()
        await asyncio.gather(*tasks)
    assert counts == [1, WINDOW, 300]


def pending_texts(lengths: list[int]) -> list[PendingText]:
    return [PendingText(key=bytes([i % 256]), content=str(i), length=length) for i, length in enumerate(lengths)]


lengths = st.lists(st.integers(1, 60), min_size=1, max_size=40)
budgets = st.integers(1, 400)
counts = st.integers(1, 12)


@given(lengths, budgets, counts)
def test_a_batch_has_the_oldest_text_and_those_nearest_in_length_within_its_budgets(
    found: list[int], tokens: int, texts: int
) -> None:
    waiting = pending_texts(found)
    batch = pack(waiting, tokens, texts)
    assert waiting[0] in batch
    assert len({id(pending) for pending in batch}) == len(batch) <= texts
    taken = [pending.length for pending in batch]
    left = [pending.length for pending in waiting if pending not in batch]
    off = [abs(length - waiting[0].length) for length in left]
    assert max(abs(length - waiting[0].length) for length in taken) <= min(off, default=60)
    padded = len(batch) * max(taken)
    assert padded <= tokens or len(batch) == 1
    assert sum(taken) / padded >= MIN_FILL
    nearest = [length for length in left if abs(length - waiting[0].length) == min(off)]
    for length in nearest[:1] if len(batch) < texts else ():  # it stops growing where the next text does not fit
        padded = (len(batch) + 1) * max(*taken, length)
        assert padded > tokens or sum(taken) + length < MIN_FILL * padded


@given(lengths, budgets, counts, st.integers(1, 8))
def test_texts_of_one_rounded_length_share_a_batch_with_the_oldest(
    found: list[int], tokens: int, texts: int, unit: int
) -> None:
    waiting = pending_texts(found)
    batch = pack(waiting, tokens, texts, same_length=unit)
    rounded = -(-waiting[0].length // unit)
    alike = [pending for pending in waiting if -(-pending.length // unit) == rounded]
    assert batch == alike[: len(batch)]  # in order of arrival, so the oldest is the first
    most = max(1, min(texts, tokens // (rounded * unit)))
    assert len(batch) == min(len(alike), most)


@pytest.mark.parametrize("same_length", [0, 64])
def test_a_text_without_tokens_is_a_batch_too(same_length: int) -> None:
    waiting = pending_texts([0, 0, 5])
    assert pack(waiting, 4096, 64, same_length=same_length)[0] is waiting[0]
