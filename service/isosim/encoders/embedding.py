"""Computes vectors of texts or reads them from caches. Computes a text only once if several requests need it at once.

Usage: `with Embedder(...) as embedder: embeddings = await embedder.embed([Text("red car"), Text("crimson car")])`.
"""

import asyncio
import copy
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import NamedTuple, Self

import numpy as np

from isosim.arrays import Vectors
from isosim.encoders.batching import BatchEncoder, BatchingPlan, BatchStats, MicroBatcher, PendingText, Waiter
from isosim.encoders.texts import Judge, KeyMaker, PooledVector, Text, Tokenize
from isosim.encoders.vector_cache import VectorCache
from isosim.errors import IsosimError, NotReady

# Registers a callback for when the client closes its connection; returns a function that unregisters the callback.
Watch = Callable[[Callable[[], None]], Callable[[], object]]


def nothing() -> None:
    """Does nothing; used as the unregister function if no connection is watched."""


class Work(NamedTuple):
    """What a request cost: seconds in each step, tokens computed, and its distinct texts by the source of their
    vectors.

    If two requests need the same text at once, its tokens count only for the request that submitted it.
    """

    tokenization: float = 0.0
    queue: float = 0.0
    inference: float = 0.0
    tokens: int = 0
    cache: float = 0.0  # seconds in the cache, nearly all of them in Redis
    memory_hits: int = 0
    shared_hits: int = 0
    shared_misses: int = 0
    joined: int = 0  # already being computed for another request
    computed: int = 0


class Embeddings(NamedTuple):
    """Distinct texts, their vectors (N, D), and the row of each requested text."""

    texts: list[PooledVector]
    vectors: Vectors
    rows: "np.ndarray[tuple[int], np.dtype[np.intp]]"
    work: Work = Work()
    asked: Sequence[Text] = ()  # the distinct texts, in the order of `vectors`; empty if the caller sent vectors
    brought: bool = False  # whether the caller sent vectors instead of texts


class Embedder:
    """Computes vectors of texts through caches and a batcher. A context manager; lives on one event loop."""

    def __init__(
        self,
        tokenize: Tokenize,
        encoder: BatchEncoder,
        *,
        encoder_digest: str,
        cache: VectorCache,
        plan: BatchingPlan,
        on_batch: Callable[[BatchStats], None] = lambda _: None,
    ) -> None:
        self.key = KeyMaker(encoder_digest)
        self.cache = cache  # encoders may have one together: its keys say whose vector it is
        self.batcher = MicroBatcher(
            tokenize,
            encoder,
            plan,
            on_done=self._done,
            on_death=self._fail_all,
            on_batch=on_batch,
        )
        self._under_way: dict[bytes, PendingText] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self.batcher)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self.cache.close()
        self._fail_all()

    def _fail_all(self) -> None:
        """Fails all texts under way with NotReady."""
        for pending in list(self._under_way.values()):
            pending.error = NotReady("the encoder has stopped")
            self._done(pending)

    async def embed(self, texts: Sequence[Text], watch: Watch | None = None, judge: Judge | None = None) -> Embeddings:
        """Vectors of the texts, rounded as the cache rounds them.

        `watch` reports that the client has closed its connection; texts that no other request needs are then dropped.
        `judge`, the domain's out-of-domain test, checks the texts that were computed or read from the shared cache;
        one call of `judge` may check texts of several requests.

        Raises:
            CallerLeft: the client closed its connection before the vectors were computed.
            Overloaded: the queue has no room for the texts that must be computed, or they would wait too long. No
                text is then computed.
            TokenizerFailure: a text cannot be turned into tokens.
            BackendFailure: the encoder failed.
            NotReady: the batcher has stopped or its device hangs.
        """
        row_of: dict[bytes, int] = {}
        wanted: dict[bytes, Text] = {}
        rows = []
        for text in texts:
            key = self.key(text)
            row = row_of.setdefault(key, len(row_of))
            if row == len(wanted):
                wanted[key] = text
            rows.append(row)
        started = time.perf_counter()
        known = {key: pooled for key in wanted if (pooled := self.cache.get(key)) is not None}
        memory_hits = len(known)
        missing = [key for key in wanted if key not in known]
        shared_hits = shared_misses = 0
        if missing and self.cache.shared is not None:
            shared_hits = await self._look_further(missing, known, judge)
            shared_misses = len(missing) - shared_hits
            missing = [key for key in missing if key not in known]
        looked = time.perf_counter() - started, memory_hits, shared_hits, shared_misses
        work = Work(0.0, 0.0, 0.0, 0, *looked)
        if missing:
            pending_texts, new = self._join(missing, wanted, judge)
            spent = await self._compute(pending_texts, new, watch)
            work = Work(*spent, *looked, joined=len(pending_texts) - len(new), computed=len(new))
            known.update((pending.key, pending.result) for pending in pending_texts if pending.result is not None)
        results = [known[key] for key in wanted]
        vectors = np.array([pooled.vector for pooled in results])
        return Embeddings(results, vectors, np.array(rows, np.intp), work, list(wanted.values()))

    async def _look_further(self, keys: list[bytes], known: dict[bytes, PooledVector], judge: Judge | None) -> int:
        """Adds the shared cache's entries of these keys to `known`; how many it has."""
        found = await self.cache.find(keys, judge)
        for key, shared in zip(keys, found, strict=True):
            # The vector in memory is preferred: another request may have computed it during the lookup.
            pooled = self.cache.get(key) or shared
            if pooled is not None:
                known[key] = pooled
        return len(found) - found.count(None)

    def _join(
        self, keys: Sequence[bytes], wanted: Mapping[bytes, Text], judge: Judge | None
    ) -> tuple[list[PendingText], list[PendingText]]:
        """All pending texts of these keys, and the new ones, which no other request has submitted."""
        pending_texts, new = [], []
        for key in keys:
            pending = self._under_way.get(key)
            if pending is None:
                pending = PendingText(key, wanted[key], judge)
                new.append(pending)
            pending_texts.append(pending)
        return pending_texts, new

    async def _compute(
        self, pending_texts: list[PendingText], new: list[PendingText], watch: Watch | None
    ) -> tuple[float, float, float, int]:
        """Submits the new texts and waits for all pending ones. Returns the first four fields of `Work`."""
        began = time.perf_counter()
        waiter = Waiter(asyncio.get_running_loop().create_future(), set(pending_texts))
        for pending in pending_texts:
            pending.waiters.add(waiter)
        stop: Callable[[], object] = nothing
        try:
            if new:
                self.batcher.submit(new)
                self._under_way.update((pending.key, pending) for pending in new)
            if watch is not None:
                stop = watch(waiter.leave)
            await waiter.future
        finally:
            stop()
            self._leave(waiter)
        tokenization = queue = inference = 0.0
        for pending in pending_texts:
            tokenization = max(tokenization, pending.tokenization)
            queue = max(queue, pending.queue)
            inference = max(inference, pending.inference)
        if len(new) < len(pending_texts):
            # Earlier requests submitted some of the texts. Only the time since this request began is counted.
            waited = time.perf_counter() - began
            tokenization, queue, inference = min(tokenization, waited), min(queue, waited), min(inference, waited)
        return tokenization, queue, inference, sum([pending.length for pending in new])

    def _leave(self, waiter: Waiter) -> None:
        """Removes a waiter; texts without a waiter are dropped before they are tokenized or run."""
        for pending in waiter.pending_texts:
            pending.waiters.discard(waiter)
            if not pending.waiters and self._under_way.get(pending.key) is pending:
                del self._under_way[pending.key]

    def _done(self, pending: PendingText) -> None:
        if self._under_way.get(pending.key) is pending:
            del self._under_way[pending.key]
        if pending.result is not None:
            self.cache.put(pending.key, pending.result)
        for waiter in list(pending.waiters):
            waiter.pending_texts.discard(pending)
            if waiter.future.done():
                continue
            if pending.error is not None:
                waiter.future.set_exception(as_new(pending.error))
            elif not waiter.pending_texts:
                waiter.future.set_result(None)


def as_new(error: IsosimError) -> IsosimError:
    """Copies the error for a waiter. A shared error would collect the tracebacks of all its waiters."""
    return copy.copy(error)
