"""Texts to pooled vectors: what is cached is taken, what is under way is shared, the rest is computed once."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

import numpy as np

from service.core.batching import BatchStats, MicroBatcher, Ticket, Work
from service.core.calibration import Matrix
from service.core.errors import IsosimError, NotReady, Overloaded
from service.core.memory_cache import MemoryCache
from service.core.texts import KeyMaker, Pooled, SharedCache, Text, Tokenize, VectorCodec


@dataclass(frozen=True, slots=True)
class Timings:
    """Where a request's time went, in seconds, and the tokens it made the device compute."""

    tokenization: float = 0.0
    queue: float = 0.0
    inference: float = 0.0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Embedded:
    """Distinct texts' vectors (N, D), and for each text asked for its row."""

    vectors: Matrix
    rows: "np.ndarray[tuple[int], np.dtype[np.intp]]"
    truncated: list[bool]  # a row each
    timings: Timings


@dataclass(frozen=True, slots=True)
class CacheLookup:
    """What one request's look into the caches found: texts by where they came from."""

    memory_hits: int
    shared_hits: int
    shared_misses: int
    joined: int  # being computed for somebody else
    computed: int


class Embedder:
    """The one way from text to vector. A context manager; lives on one event loop."""

    def __init__(
        self,
        tokenize: Tokenize,
        encode: Callable[[list[list[int]]], Matrix],
        *,
        encoder_digest: str,
        codec: VectorCodec,
        memory: MemoryCache,
        shared: SharedCache | None,
        max_batch_tokens: int,
        max_batch_texts: int,
        max_queued_texts: int,
        on_batch: Callable[[BatchStats], None] = lambda _: None,
        on_lookup: Callable[[CacheLookup], None] = lambda _: None,
    ) -> None:
        self.key = KeyMaker(encoder_digest)
        self.codec, self.memory, self.shared, self.on_lookup = codec, memory, shared, on_lookup
        self.batcher = MicroBatcher(
            tokenize,
            encode,
            codec,
            max_batch_tokens=max_batch_tokens,
            max_batch_texts=max_batch_texts,
            max_queued_texts=max_queued_texts,
            on_done=self._done,
            on_batch=on_batch,
        )
        self._under_way: dict[bytes, Work] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self.batcher)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        for work in list(self._under_way.values()):  # admitted, never run
            work.error = NotReady("the server is stopping")
            self._done(work)

    async def embed(self, texts: Sequence[Text]) -> Embedded:
        """Vectors of the texts, rounded as the cache rounds them.

        Raises:
            Overloaded: the queue has no room for all texts that need computing; none is computed.
            TokenizerFailure, BackendFailure: a text or the encoder failed.
        """
        row_of: dict[Text, int] = {}
        rows = np.fromiter((row_of.setdefault(text, len(row_of)) for text in texts), np.intp, len(texts))
        keys = [self.key(text) for text in row_of]
        found: list[Pooled | None] = [self.memory.get(key) for key in keys]
        missing = [row for row, pooled in enumerate(found) if pooled is None]
        memory_hits = len(found) - len(missing)
        shared_hits = shared_misses = 0
        if missing and self.shared is not None:
            entries = await self.shared.get([keys[row] for row in missing])
            for row, entry in zip(missing, entries, strict=True):
                pooled = self.codec.decode(entry) if entry is not None else None
                if pooled is not None:
                    self.memory.put(keys[row], pooled)
                    found[row] = pooled
                else:
                    # Somebody may have finished it while we were asking.
                    found[row] = self.memory.get(keys[row])
                    shared_misses += 1
            still = [row for row in missing if found[row] is None]
            shared_hits = len(missing) - shared_misses
            missing = still

        works: dict[int, Work] = {}
        timings = Timings()
        if missing:
            contents = list(row_of)
            new = []
            for row in missing:
                work = self._under_way.get(keys[row])
                if work is None:
                    work = Work(keys[row], contents[row])
                    new.append(work)
                works[row] = work
            ticket = Ticket(asyncio.get_running_loop().create_future(), set(works.values()))
            for work in works.values():
                work.waiters.add(ticket)
            try:
                if new:
                    self.batcher.submit(new)
            except (Overloaded, NotReady):
                self._leave(ticket)
                raise
            self._under_way.update((work.key, work) for work in new)
            self.on_lookup(CacheLookup(memory_hits, shared_hits, shared_misses, len(works) - len(new), len(new)))
            try:
                await ticket.future
            finally:
                self._leave(ticket)
            timings = Timings(
                max(work.tokenization for work in works.values()),
                max(work.queue for work in works.values()),
                max(work.inference for work in works.values()),
                sum(work.length for work in new),
            )
            for row, work in works.items():
                found[row] = work.result
        else:
            self.on_lookup(CacheLookup(memory_hits, shared_hits, shared_misses, 0, 0))
        results = [pooled for pooled in found if pooled is not None]
        vectors = np.stack([pooled.vector for pooled in results])
        return Embedded(vectors, rows, [pooled.truncated for pooled in results], timings)

    def _leave(self, ticket: Ticket) -> None:
        """A caller waits no longer; a work that nobody waits for is dropped before it is tokenized or run."""
        for work in ticket.works:
            work.waiters.discard(ticket)
            if not work.waiters and self._under_way.get(work.key) is work:
                del self._under_way[work.key]

    def _done(self, work: Work) -> None:
        if self._under_way.get(work.key) is work:
            del self._under_way[work.key]
        if work.result is not None:
            self.memory.put(work.key, work.result)
            if self.shared is not None:
                self.shared.put([(work.key, self.codec.encode(work.result))])
        for ticket in list(work.waiters):
            ticket.works.discard(work)
            if ticket.future.done():
                continue
            if work.error is not None:
                ticket.future.set_exception(as_new(work.error))
            elif not ticket.works:
                ticket.future.set_result(None)


def as_new(error: IsosimError) -> IsosimError:
    """The same error for another waiter: one exception object must not collect the tracebacks of many tasks."""
    return type(error)(str(error))
