"""Computes vectors of texts or reads them from caches. Computes a text only once if several requests need it at once.

Usage: `with Embedder(...) as embedder: embeddings = await embedder.embed(["red car", "crimson car"])`.
"""

import asyncio
import copy
import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple, Self, get_args

import numpy as np

from isosim.arrays import Rows, Vectors
from isosim.encoders.batching import BatchEncoder, BatchingPlan, MicroBatcher, PendingText
from isosim.encoders.texts import Judge, PooledVector, Side, Tokenize
from isosim.encoders.vector_cache import VectorCache
from isosim.errors import CallerLeft, NotReady, TokenizerFailure

# Registers a callback for when the client closes its connection; returns a function that unregisters the callback.
Watch = Callable[[Callable[[], None]], Callable[[], object]]


class Embeddings(NamedTuple):
    """Distinct texts, their vectors (N, D), the row of each requested text, and what they cost.

    The cost is in seconds, computed tokens, and distinct texts by the source of their vectors. If two requests need the
    same text at once, its tokens count only for the request that submitted it.
    """

    texts: list[PooledVector]
    vectors: Vectors
    rows: Rows
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
        on_batch: Callable[[Sequence[int]], None] = lambda _: None,
    ) -> None:
        self._prefixes = {
            side: hashlib.blake2b(f"{encoder_digest}\0{side}\0".encode(), digest_size=20) for side in get_args(Side)
        }
        self.cache = cache  # encoders may have one together: its keys say whose vector it is
        self.batcher = MicroBatcher(
            tokenize, encoder, plan, on_done=self._done, on_death=self._fail_all, on_batch=on_batch
        )
        self._under_way: dict[bytes, PendingText] = {}
        self._awaited: dict[asyncio.Future[None], set[PendingText]] = {}  # by request: its texts that are not done
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self.batcher)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._fail_all()

    def _fail_all(self) -> None:
        """Fails all texts under way with NotReady."""
        for pending in list(self._under_way.values()):
            pending.error = NotReady("the encoder has stopped")
            self._done(pending)

    def key(self, content: str, side: Side = "right") -> bytes:  # 20 bytes
        """The cache key of a text: a hash of encoder digest, truncation side and text, so that no cache holds a text.

        Raises:
            TokenizerFailure: the text is not valid Unicode; JSON, for example, can contain half of a surrogate pair.
        """
        key = self._prefixes[side].copy()
        try:
            key.update(content.encode())
        except UnicodeEncodeError:
            raise TokenizerFailure("a text holds half of a surrogate pair, which is not valid Unicode") from None
        return key.digest()

    async def embed(
        self, contents: Sequence[str], side: Side = "right", watch: Watch | None = None, judge: Judge | None = None
    ) -> Embeddings:
        """Vectors of texts, rounded as the cache rounds them. Texts that are too long are cut from `side`.

        `watch` reports that the client has closed its connection; texts that no other request needs are then dropped.
        `judge`, the domain's out-of-domain test, checks the texts that were computed or read from the shared cache,
        also those of other requests in the same call.

        Raises:
            CallerLeft: the client closed its connection before the vectors were computed.
            Overloaded: the queue has no room for the texts that must be computed, or they would wait too long. No
                text is then computed.
            TokenizerFailure: a text cannot be turned into tokens.
            BackendFailure: the encoder failed.
            NotReady: the batcher has stopped or its device hangs.
        """
        keys = [self.key(content, side) for content in contents]
        content_of = dict(zip(keys, contents, strict=True))
        started = time.perf_counter()
        known = {key: pooled for key in content_of if (pooled := self.cache.get(key)) is not None}
        memory_hits = len(known)
        missing = [key for key in content_of if key not in known]
        shared_hits = shared_misses = joined = computed = 0
        if missing and self.cache.shared is not None:
            known |= await self.cache.find(missing, judge)
            shared_hits = len(known) - memory_hits
            shared_misses = len(missing) - shared_hits
            missing = [key for key in missing if key not in known]
        looked = time.perf_counter() - started
        spent = 0.0, 0.0, 0.0, 0
        if missing:
            new = {key: PendingText(key, content_of[key], side, judge) for key in missing if key not in self._under_way}
            pending_texts = [new.get(key) or self._under_way[key] for key in missing]
            spent = await self._compute(pending_texts, list(new.values()), watch)
            joined, computed = len(missing) - len(new), len(new)
            known.update((pending.key, pending.result) for pending in pending_texts if pending.result is not None)
        row_of = {key: row for row, key in enumerate(content_of)}
        texts = [known[key] for key in content_of]
        vectors, rows = np.array([text.vector for text in texts]), np.array([row_of[key] for key in keys], np.intp)
        return Embeddings(
            texts, vectors, rows, *spent, looked, memory_hits, shared_hits, shared_misses, joined, computed
        )

    async def _compute(
        self, pending_texts: list[PendingText], new: list[PendingText], watch: Watch | None
    ) -> tuple[float, float, float, int]:
        """Submits the new texts and waits for all pending ones. Returns tokenization, queue, inference and tokens."""
        began = time.perf_counter()
        waiter = asyncio.get_running_loop().create_future()
        self._awaited[waiter] = set(pending_texts)
        for pending in pending_texts:
            pending.waiters.add(waiter)
        unwatch: Callable[[], object] = lambda: None  # noqa: E731
        try:
            if new:
                self.batcher.submit(new)
                self._under_way.update((pending.key, pending) for pending in new)
            if watch is not None:
                unwatch = watch(partial(fail, waiter, CallerLeft()))
            await waiter
        finally:
            unwatch()
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

    def _leave(self, waiter: "asyncio.Future[None]") -> None:
        """Ends a request's wait; texts that no request waits for are dropped before they are tokenized or run."""
        for pending in self._awaited.pop(waiter):
            pending.waiters.discard(waiter)
            if not pending.waiters and self._under_way.get(pending.key) is pending:
                del self._under_way[pending.key]

    def _done(self, pending: PendingText) -> None:
        if self._under_way.get(pending.key) is pending:
            del self._under_way[pending.key]
        if pending.result is not None:
            self.cache.put(pending.key, pending.result)
        for waiter in pending.waiters:
            self._awaited[waiter].discard(pending)
            if pending.error is not None:
                # A copy, because a shared error would collect the tracebacks of all its waiters.
                fail(waiter, copy.copy(pending.error))
            elif not self._awaited[waiter] and not waiter.done():
                waiter.set_result(None)
        pending.waiters = set()


def fail(waiter: "asyncio.Future[None]", error: Exception) -> None:
    if not waiter.done():
        waiter.set_exception(error)
