"""Groups texts from concurrent requests into batches, in two stages: prepare (tokenize, pack, pad) and run.

    with MicroBatcher(tokenize, encoder, codec, BatchingPlan(runs=2), on_done=deliver) as batcher:
        batcher.submit([PendingText(key, Text("How do I log in?"))])

One thread prepares batches, and up to `runs` batches run at once. Between the stages waits at most one batch, so the
device never waits for a preparation, and no batch is formed long before it runs. No batch waits for a timer: an idle
device starts at once, and batches become fuller while it is busy. A batch is the oldest waiting text with texts of
similar length, so no text waits forever, and batches contain little padding. If the queue is empty, the event loop
prepares a few short texts itself, which is faster than waking a thread.

Under light load, a CPU runs one batch on all cores (lowest latency). Under heavy load, it runs one batch per core
(highest throughput; measured: loadtest/README.md).
"""

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from types import TracebackType
from typing import Any, Protocol, Self

from isosim.arrays import Vectors
from isosim.encoders.texts import Judge, PooledVector, Text, Tokenize, Tokens, VectorCodec, judge_together
from isosim.errors import (
    BackendFailure,
    CallerLeft,
    EncoderUnreachable,
    IsosimError,
    NotReady,
    Overloaded,
    TokenizerFailure,
)

log = logging.getLogger(__name__)

NICENESS = 5  # niceness of the threads that run batches; the event loop has priority over them
JOIN_SECONDS = 5.0
HANDLING = 16  # number of characters added to the length of each text, for the fixed cost of encoding a text
# A request is refused if its expected wait exceeds `BatchingPlan.max_wait`. It is not refused while the queue is small:
# the total size of the queued texts is at most FREE_SIZE, or at most FREE_REQUESTS times the size of the request.
FREE_SIZE = 12_000  # in characters, plus HANDLING for each text; about 64 pairs
FREE_REQUESTS = 16
INLINE_SIZE = 400  # maximum number of characters tokenized on the event loop; takes 0.05 ms (Chinese: 0.5 ms)
WINDOW = 1024  # number of the oldest waiting texts from which a batch is chosen
NO_TEXTS_FAULT = (EncoderUnreachable, NotReady, Overloaded)  # errors that no text can cause


@dataclass(eq=False, slots=True)
class PendingText:
    """One text being encoded, with the requests that wait for it.

    The event loop writes the fields, unless a field's comment names another thread.
    """

    key: bytes
    text: Text
    judge: Judge | None = None
    waiters: set["Waiter"] = field(default_factory=set)
    result: PooledVector | None = None
    error: IsosimError | None = None
    arrived: float = 0.0  # time.perf_counter() at the arrival
    size: int = 0  # characters + HANDLING: estimated cost of encoding, before the tokens are known
    tokens: Tokens | None = None  # written by the preparing thread
    length: int = 0  # number of tokens; written by the preparing thread
    tokenization: float = 0.0  # duration in s; written by the preparing thread
    queue: float = 0.0  # time in the queue, in s; written by the thread that runs the batch
    inference: float = 0.0  # duration in s; written by the thread that runs the batch


@dataclass(eq=False, slots=True)
class Waiter:
    """A request that waits for some texts."""

    future: "asyncio.Future[None]"
    pending_texts: set[PendingText]

    def leave(self) -> None:
        """Ends the wait with the error CallerLeft."""
        if not self.future.done():
            self.future.set_exception(CallerLeft())


@dataclass(eq=False, slots=True)
class Batch:
    """Texts that run together."""

    texts: list[PendingText]
    exclusive: bool  # whether the batch has the device to itself
    prepared: Any = None  # the encoder's input; None: it could not be prepared, and the run reports the error


@dataclass(frozen=True, slots=True)
class BatchStats:
    """Size and duration (seconds) of a batch."""

    texts: int
    tokens: int  # without padding
    padded_tokens: int
    inference: float


class BatchEncoder(Protocol):
    """Computes vectors from token ids in two steps, so that one batch can be prepared while another runs."""

    def prepare(self, ids: Sequence[Sequence[int]]) -> Any: ...

    def run(self, prepared: Any, *, exclusive: bool) -> Vectors:  # (N, D)
        """Called from up to `BatchingPlan.runs` threads at once; `exclusive`: True if no other run is in progress."""
        ...


@dataclass(frozen=True, slots=True)
class BatchingPlan:
    """How texts are queued and batched for the device."""

    runs: int = 1  # number of batches that the device computes at the same time
    exclusive: bool = False  # True: a batch gets the whole device if no other batch runs and at most `runs` texts wait
    # Whether another server runs the encoder. Texts are sent to that server without padding, so a batch may mix short
    # and long texts. Full batches keep the number of HTTP requests low.
    remote: bool = False
    max_batch_tokens: int = 2048  # maximum number of tokens per batch, padding included
    max_batch_texts: int = 64
    max_queued_texts: int = 4096  # maximum number of texts that are admitted and unfinished
    max_wait: float = 0.3  # seconds; a request is refused if encoding the queued texts is expected to take longer
    # `max_wait` does not apply while the queue is small: its total size is at most `free_size`, or at most
    # `free_requests` times the request's size. So a slow server does not refuse its first requests.
    free_size: int = FREE_SIZE
    free_requests: int = FREE_REQUESTS
    hung_after: float = 300.0  # seconds; the device counts as hung if a single run takes longer


class MicroBatcher:
    """Encodes texts in batches. A context manager that owns its threads; `submit` is called on its event loop."""

    def __init__(
        self,
        tokenize: Tokenize,
        encoder: BatchEncoder,
        codec: VectorCodec,
        plan: BatchingPlan,
        *,
        on_done: Callable[[PendingText], None],
        on_death: Callable[[], None] = lambda: None,
        on_batch: Callable[[BatchStats], None] = lambda _: None,
    ) -> None:
        self.tokenize, self.encoder, self.codec = tokenize, encoder, codec
        self.plan = plan
        self.on_done, self.on_death, self.on_batch = on_done, on_death, on_batch
        self.queued = 0  # number of texts admitted and unfinished
        self.queued_size = 0  # sum of the sizes of the texts that `queued` counts
        self.rate = 0.0  # total size of the texts that the device encodes per second, smoothed
        self._lock = threading.Lock()  # protects the fields up to `_exclusive`
        self._to_prepare, self._to_run = threading.Condition(self._lock), threading.Condition(self._lock)
        self._arriving: deque[PendingText] = deque()
        self.waiting: deque[PendingText] = deque()  # tokenized texts, in order of arrival
        self._prepared: deque[Batch] = deque()  # at most one
        self._running = 0  # number of batches that run
        self._exclusive = False  # whether a batch has the device to itself
        self._runs_since: dict[int, float] = {}  # thread id: start of its current run, in s of the monotonic clock
        self._stopping = False
        self._dead = False
        self._loop: asyncio.AbstractEventLoop | None = None
        # One thread more than runs: it starts the next run while another thread delivers the results of its run.
        stages = [("prepare", self._preparing), *[("run", self._run_batches)] * (plan.runs + 1)]
        self._threads = [
            threading.Thread(target=self._living, args=(stage,), name=name, daemon=True) for name, stage in stages
        ]

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        with self._lock:
            self._stopping = True
            self._to_prepare.notify_all()
            self._to_run.notify_all()
        end = time.monotonic() + JOIN_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))  # a thread on a hung device never ends

    @property
    def alive(self) -> bool:
        """False if a thread has died or a run hangs; new texts are then refused."""
        return not self._dead and not self._hangs and all(thread.is_alive() for thread in self._threads)

    @property
    def _hangs(self) -> bool:
        latest = time.monotonic() - self.plan.hung_after
        return any(since < latest for since in list(self._runs_since.values()))

    @property
    def expected_wait(self) -> float:
        """Estimated seconds until all texts that are queued now are encoded."""
        return self.queued_size / self.rate if self.rate else 0.0

    def submit(self, pending_texts: Sequence[PendingText]) -> None:
        """Admits all texts or none.

        Raises:
            Overloaded: the queue has no room for all of them, or they would wait too long; `retry_after` is the
                expected time until the queue is empty.
            NotReady: a thread of the batcher has died, a run hangs, or the batcher is stopping.
        """
        if self._dead or self._stopping or self._hangs:
            raise NotReady("the encoder's thread has stopped")
        sizes = [len(pending.text.content) + HANDLING for pending in pending_texts]
        size = sum(sizes)
        wait = self.expected_wait
        never_too_long = max(self.plan.free_size, self.plan.free_requests * size)
        if wait > self.plan.max_wait and self.queued_size > never_too_long:
            raise Overloaded(
                f"encoding the queued texts takes {wait:.1f} s; a request may wait at most {self.plan.max_wait:g} s",
                retry_after(wait),
            )
        if self.queued + len(pending_texts) > self.plan.max_queued_texts:
            raise Overloaded(
                f"{self.queued} texts are queued, and the limit is {self.plan.max_queued_texts}; "
                f"{len(pending_texts)} more do not fit now",
                retry_after(wait or 1.0),
            )
        now = time.perf_counter()
        for pending, own_size in zip(pending_texts, sizes, strict=True):
            pending.arrived = now
            pending.size = own_size
        alone = not self.queued and size <= INLINE_SIZE
        self.queued_size += size
        self.queued += len(pending_texts)
        if alone:
            self._living(partial(self._prepare, list(pending_texts)))
            return
        with self._lock:
            self._arriving.extend(pending_texts)
            self._to_prepare.notify()

    def _living(self, main: Callable[[], None]) -> None:
        """Runs `main`. If it raises, logs the exception and calls `on_death`, and the batcher accepts no more texts."""
        try:
            main()
        except BaseException:  # a Rust panic in the tokenizer is not a subclass of Exception
            log.exception("the batcher failed in the thread %s", threading.current_thread().name)
            self._dead = True
            if self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self.on_death)

    def _preparing(self) -> None:
        while True:
            with self._lock:
                self._to_prepare.wait_for(lambda: self._stopping or self._arriving or self._can_prepare)
                if self._stopping:
                    return
                # Not all at once: the device must not wait until a large request is tokenized.
                count = min(len(self._arriving), self.plan.max_batch_texts)
                arrived = [self._arriving.popleft() for _ in range(count)]
            self._prepare(arrived)
            del arrived  # otherwise these texts stay in memory until the next ones arrive

    @property
    def _can_prepare(self) -> bool:
        return bool(self.waiting) and not self._prepared and not self._exclusive

    def _prepare(self, arrived: list[PendingText]) -> None:
        """Tokenizes these texts, and prepares the next batch if none is prepared."""
        if arrived:
            self._tokenize(arrived)
        batch, gone = self._form()
        self._deliver(gone)
        if batch is not None:
            with contextlib.suppress(Exception):  # the run prepares the batch again and reports the error
                batch.prepared = self.encoder.prepare(ids_of(batch.texts))
            with self._lock:
                self._prepared.append(batch)
                self._to_run.notify()

    def _form(self) -> tuple[Batch | None, list[PendingText]]:
        """Takes the next batch from the waiting texts, if one may be prepared now. Also returns the waiting texts that
        no request needs any longer."""
        with self._lock:
            if not self._can_prepare:
                return None, []
            waiting, gone = self._divide(self.waiting)
            texts: list[PendingText] = []
            if waiting:
                idle = self.plan.runs - self._running
                self._exclusive = self.plan.exclusive and not self._running and len(waiting) <= self.plan.runs
                budget = self.plan.max_batch_tokens if self._exclusive else self._budget(waiting, idle)
                texts = pack(waiting, budget, self.plan.max_batch_texts)
            chosen = set(texts)
            self.waiting = deque(pending for pending in waiting if pending not in chosen)
            return Batch(texts, self._exclusive) if texts else None, gone

    def _budget(self, waiting: Sequence[PendingText], idle: int) -> int:
        """Maximum number of tokens in the next batch, padding included; at most `max_batch_tokens`.

        If several runs are idle, the maximum is the number of waiting tokens divided by the number of idle runs. So
        each gets some of the texts, and the two texts of a pair run in parallel. With a remote encoder, the maximum is
        always `max_batch_tokens`.
        """
        if idle < 2 or self.plan.remote:
            return self.plan.max_batch_tokens
        return min(self.plan.max_batch_tokens, -(-sum(pending.length for pending in waiting) // idle))

    def _tokenize(self, pending_texts: list[PendingText]) -> None:
        start = time.perf_counter()
        wanted, gone = self._divide(pending_texts)
        self._deliver(gone)
        failed: list[PendingText] = []
        for side in ("right", "left"):
            group = [pending for pending in wanted if pending.text.side == side]
            if group:
                failed += self._tokenize_group(group)
        spent = time.perf_counter() - start
        for pending in wanted:
            pending.tokenization = spent
        self._deliver(failed)
        with self._lock:
            self.waiting.extend(pending for pending in wanted if pending.tokens is not None)

    def _tokenize_group(self, pending_texts: list[PendingText]) -> list[PendingText]:
        try:
            results = self.tokenize([pending.text.content for pending in pending_texts], pending_texts[0].text.side)
        except Exception as error:  # noqa: BLE001 - a bad text must not end the thread
            if len(pending_texts) > 1:  # tokenize one by one, so that only the bad text fails
                return [failed for pending in pending_texts for failed in self._tokenize_group([pending])]
            known = error if isinstance(error, IsosimError) else None
            pending_texts[0].error = known or TokenizerFailure(f"a text cannot be tokenized: {error}")
            return pending_texts
        for pending, tokens in zip(pending_texts, results, strict=True):
            if tokens.ids:
                pending.tokens, pending.length = tokens, len(tokens.ids)
            else:
                pending.error = TokenizerFailure("a text has no tokens")
        return [pending for pending in pending_texts if pending.tokens is None]

    def _run_batches(self) -> None:
        give_way()
        while (batch := self._take()) is not None:
            # A prepared batch is dropped if its callers have left since.
            vectors = self._encode(batch) if any(pending.waiters for pending in batch.texts) else None
            with self._lock:
                self._running -= 1
                self._exclusive = False
                self._wake()
            if vectors is not None:
                self._keep(batch.texts, vectors)
            self._deliver(batch.texts)
            del batch, vectors  # otherwise they stay in memory until the next batch

    def _take(self) -> Batch | None:
        """Waits for a batch and for the device. Returns None once the batcher stops."""
        with self._lock:
            self._to_run.wait_for(lambda: self._stopping or (self._prepared and self._running < self.plan.runs))
            if self._stopping:
                return None
            self._running += 1
            batch = self._prepared.popleft()
            self._wake()
            return batch

    def _wake(self) -> None:
        """Wakes the threads that can go on; called with the lock."""
        if self._prepared:
            self._to_run.notify()
        if self._can_prepare:
            self._to_prepare.notify()

    def _encode(self, batch: Batch) -> list[Vectors | None]:
        """A vector (D,) for each text. For a text that fails, stores its error and returns None.

        If a batch fails and a text may be the reason, its texts run one by one, so that only the bad text fails.
        """
        texts = batch.texts
        error: IsosimError | None = None
        rows: list[Vectors | None] = [None] * len(texts)
        start = time.perf_counter()
        self._runs_since[threading.get_ident()] = time.monotonic()
        try:
            prepared = self.encoder.prepare(ids_of(texts)) if batch.prepared is None else batch.prepared
            vectors = self.encoder.run(prepared, exclusive=batch.exclusive)
            if len(vectors) != len(texts):
                raise BackendFailure(f"the encoder gave {len(vectors)} vectors for {len(texts)} texts")
            rows = list(self.codec.round(vectors))
        except IsosimError as known:
            error = known
        except Exception as unknown:  # a bad batch must not end the thread
            log.exception("the encoder failed")
            error = BackendFailure(f"the encoder failed: {type(unknown).__name__}")
        finally:
            self._runs_since.pop(threading.get_ident())
        spent = time.perf_counter() - start
        longest = max(pending.length for pending in texts)
        self.on_batch(BatchStats(len(texts), sum(w.length for w in texts), longest * len(texts), spent))
        if error is not None and len(texts) > 1 and not isinstance(error, NO_TEXTS_FAULT):
            log.warning("a batch of %d texts failed, so they run one by one: %s", len(texts), error)
            return [row for pending in texts for row in self._encode(Batch([pending], batch.exclusive))]
        for pending in texts:
            pending.error = error
            pending.queue = start - pending.arrived - pending.tokenization
            pending.inference = spent
        if error is None:
            rate = (
                (1 if batch.exclusive else self.plan.runs) * sum(pending.size for pending in texts) / max(spent, 1e-6)
            )
            self.rate = rate if not self.rate else 0.9 * self.rate + 0.1 * rate
        return rows

    @staticmethod
    def _keep(texts: list[PendingText], vectors: list[Vectors | None]) -> None:
        """Stores the vectors, and calls the out-of-domain tests."""
        for pending, vector in zip(texts, vectors, strict=True):
            if vector is not None and pending.tokens is not None:
                _, truncated, unreadable, unknown_hash = pending.tokens
                # The vector is copied: a cached view of one row would keep the vectors of the whole batch in memory.
                pending.result = PooledVector(vector.copy(), pending.length, truncated, unreadable, unknown_hash)
        judge_together((pending.judge, pending.result) for pending in texts)

    @staticmethod
    def _divide(pending_texts: Iterable[PendingText]) -> tuple[list[PendingText], list[PendingText]]:
        """Returns the texts that a request still waits for, and the texts that no request needs any longer.

        Reads `waiters` only once for each text, because the event loop may change it at any time.
        """
        wanted: list[PendingText] = []
        gone: list[PendingText] = []
        for pending in pending_texts:
            (wanted if pending.waiters else gone).append(pending)
        return wanted, gone

    def _deliver(self, pending_texts: list[PendingText]) -> None:
        if pending_texts and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._finish, pending_texts)

    def _finish(self, pending_texts: list[PendingText]) -> None:  # runs on the event loop
        self.queued -= len(pending_texts)
        self.queued_size -= sum(pending.size for pending in pending_texts)
        for pending in pending_texts:
            self.on_done(pending)


def give_way() -> None:
    """Lowers the priority of the calling thread."""
    with contextlib.suppress(OSError, AttributeError):  # threads have priorities of their own only on Linux
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


def retry_after(wait: float) -> int:
    """Value of the Retry-After header: whole seconds, 1 to 60."""
    return max(1, min(60, round(wait)))


def ids_of(texts: Sequence[PendingText]) -> list[Sequence[int]]:
    return [pending.tokens.ids for pending in texts if pending.tokens is not None]


def pack(waiting: Sequence[PendingText], max_tokens: int, max_texts: int) -> list[PendingText]:
    """The oldest text and the texts nearest to it in length: at most `max_tokens` tokens, padding included.

    `waiting` is in order of arrival. A text longer than `max_tokens` becomes a batch of its own.
    """
    oldest = waiting[0]
    by_length = sorted(waiting[:WINDOW], key=attrgetter("length"))
    low = by_length.index(oldest)
    high = low + 1  # the batch is by_length[low:high]
    longest, real = oldest.length, oldest.length
    while high - low < max_texts:
        count = high - low + 1
        costs = []  # (share of real tokens, -1: add the shorter text, 1: add the longer text)
        if low and count * longest <= max_tokens:
            costs.append(((real + by_length[low - 1].length) / (count * longest), -1))
        if high < len(by_length) and count * (longer := by_length[high].length) <= max_tokens:
            costs.append(((real + longer) / (count * longer), 1))
        if not costs:
            break
        _, side = max(costs)
        if side < 0:
            low -= 1
            real += by_length[low].length
        else:
            longest = by_length[high].length
            real += longest
            high += 1
    return by_length[low:high]
