"""Groups texts from concurrent requests into batches: queue, tokenize, pack, run, deliver.

    with MicroBatcher(tokenize, encoder, BatchingPlan(runs=2), on_done=deliver) as batcher:
        batcher.submit([PendingText(key, "How do I log in?")])

No batch waits for a timer. An idle thread tokenizes the texts that have arrived, takes the oldest waiting text and
fills a batch with texts of similar length. So an idle device starts at once, batches become fuller while the device is
busy, no text waits forever, and batches contain little padding.

Under light load, a CPU runs one batch on all cores (lowest latency). Under heavy load, it runs one batch per core
(highest throughput; measured: loadtest/README.md). A GPU runs one batch while the next is prepared.
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
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from isosim.arrays import Vectors
from isosim.encoders.texts import Judge, PooledVector, Side, Tokenize, Tokens, judge_together, rounded_up
from isosim.errors import (
    BackendFailure,
    EncoderUnreachable,
    IsosimError,
    NotReady,
    Overloaded,
    TokenizerFailure,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

NICENESS = 5  # niceness of the threads that run batches; the event loop has priority over them
JOIN_SECONDS = 5.0
QUEUED_TEXTS = 4096  # texts admitted and not yet answered: two of the largest requests; bounds their memory
HANDLING = 16  # number of characters added to the length of each text, for the fixed cost of encoding a text
# A request is refused if its expected wait exceeds `BatchingPlan.max_wait`. It is not refused while the queue is small:
# the total size of the queued texts is at most FREE_SIZE, or at most FREE_REQUESTS times the size of the request.
FREE_SIZE = 12_000  # in characters, plus HANDLING for each text; about 64 pairs
FREE_REQUESTS = 16
# Minimum share of real tokens in a batch, the rest is padding. On a CPU, texts of 8 and 24 tokens (0.67) take 1.3 times
# as long together as one after the other, texts of 8 and 12 (0.83) 0.8 times as long.
MIN_FILL = 0.7
WINDOW = 1024  # number of tokenized texts from which a batch is chosen
NO_TEXTS_FAULT = (EncoderUnreachable, NotReady, Overloaded)  # errors that no text can cause


@dataclass(eq=False, slots=True)
class PendingText:
    """One text being encoded, with the requests that wait for it.

    The event loop writes the fields, unless a field's comment names another thread.
    """

    key: bytes
    content: str
    side: Side = "right"
    judge: Judge | None = None
    waiters: set["asyncio.Future[None]"] = field(default_factory=set)
    result: PooledVector | None = None
    error: IsosimError | None = None
    arrived: float = 0.0  # time.perf_counter() at the arrival
    size: int = 0  # characters + HANDLING: estimated cost of encoding, before the tokens are known
    tokens: Tokens | None = None  # written by the thread that tokenizes
    length: int = 0  # number of tokens; written by the thread that tokenizes
    tokenization: float = 0.0  # duration in s; written by the thread that tokenizes
    queue: float = 0.0  # time in the queue, in s; written by the thread that runs the batch
    inference: float = 0.0  # duration in s; written by the thread that runs the batch


class BatchEncoder(Protocol):
    """Computes vectors from token ids in two steps, so that one batch can be prepared while another runs."""

    def prepare(self, ids: Sequence[Sequence[int]]) -> Any: ...

    def run(self, prepared: Any, *, exclusive: bool) -> Vectors:  # (N, D)
        """Called from up to `BatchingPlan.runs` threads at once. `exclusive`: True if no other run was in progress when
        the batch was formed; texts of a failed batch, which run one by one, may begin meanwhile."""
        ...


@dataclass(frozen=True, slots=True)
class BatchingPlan:
    """How texts are queued and batched for the device."""

    runs: int = 1  # number of batches that the device computes at the same time
    threads: int = 1  # threads of each run
    # Threads of a run that has the device to itself, as a batch has if no other batch runs and at most `runs` texts
    # wait; 0: no run gets the device to itself.
    threads_alone: int = 0
    ahead: int = 0  # number of batches prepared while others run; useful where preparation is slow compared with a run
    # Whether another server runs the encoder. Texts are sent to that server without padding, so a batch may mix short
    # and long texts. Full batches keep the number of HTTP requests low.
    remote: bool = False
    # If not 0, a batch has only texts that have the same length when rounded up to a multiple of this number.
    same_length: int = 0
    max_batch_tokens: int = 2048  # maximum number of tokens per batch, padding included
    max_batch_texts: int = 64
    max_queued_texts: int = QUEUED_TEXTS  # maximum number of texts that are admitted and unfinished
    max_wait: float = 0.3  # seconds; a request is refused if encoding the queued texts is expected to take longer
    # `max_wait` does not apply while the queue is small: its total size is at most `free_size`, or at most
    # `free_requests` times the request's size. So a slow server does not refuse its first requests.
    free_size: int = FREE_SIZE
    free_requests: int = FREE_REQUESTS
    hung_after: float = 300.0  # seconds; the device counts as hung if a single run takes longer


class MicroBatcher:
    """Encodes texts in batches. A context manager that owns its threads; `submit` is called on its event loop.

    Each thread forms a batch and runs it. One thread at a time forms one: it tokenizes what has arrived, packs, and
    prepares the batch for the device. It lets the next thread begin only when the device has taken the batch, so that
    batches run in the order in which they were formed, and at most one waits for the device.
    """

    def __init__(
        self,
        tokenize: Tokenize,
        encoder: BatchEncoder,
        plan: BatchingPlan,
        *,
        on_done: Callable[[PendingText], None],
        on_death: Callable[[], None] = lambda: None,
        on_batch: Callable[[Sequence[int]], None] = lambda _: None,  # gets the numbers of tokens of a batch's texts
    ) -> None:
        self.tokenize, self.encoder = tokenize, encoder
        self.plan = plan
        self.on_done, self.on_death, self.on_batch = on_done, on_death, on_batch
        self.queued = 0  # number of texts admitted and unfinished
        self.queued_size = 0  # sum of the sizes of the texts that `queued` counts
        self.rate = 0.0  # total size of the texts that the device encodes per second, smoothed
        # Whether a calibration job uses the processor. Then no batch runs on all cores, because the busiest core would
        # slow the batch down.
        self.cpu_contended = False
        self._arriving: deque[PendingText] = deque()
        self._arrived = threading.Condition()
        self._forming = threading.Lock()  # held by the thread that forms a batch; it alone uses `_waiting`
        self._waiting: list[PendingText] = []  # tokenized texts, in order of arrival
        self._idle = 0  # number of threads that have no batch
        self._device = threading.Semaphore(plan.runs)
        self._runs_since: dict[int, float] = {}  # thread id: start of its current run, in s of the monotonic clock
        self._stopping = False
        self._dead = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads = [
            threading.Thread(target=self._living, name=f"encode-{number}", daemon=True)
            for number in range(plan.runs + plan.ahead)
        ]

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._stopping = True
        with self._arrived:
            self._arrived.notify_all()
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
        sizes = [len(pending.content) + HANDLING for pending in pending_texts]
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
        self.queued_size += size
        self.queued += len(pending_texts)
        with self._arrived:
            self._arriving.extend(pending_texts)
            self._arrived.notify()

    def _living(self) -> None:
        """A thread. If it raises, logs the exception and calls `on_death`, and the batcher accepts no more texts."""
        try:
            give_way()
            while not self._stopping:
                self._work()
        except BaseException:  # a Rust panic in the tokenizer is not a subclass of Exception
            log.exception("the batcher failed in the thread %s", threading.current_thread().name)
            self._dead = True
            if self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self.on_death)

    def _work(self) -> None:
        """Forms a batch and runs it."""
        with self._arrived:
            self._idle += 1
        with self._forming:
            batch, exclusive = self._form()
            with self._arrived:
                self._idle -= 1
            if not batch:
                return
            prepared = self._prepare(batch)
            self._device.acquire()
            if exclusive:  # no other thread may begin a batch meanwhile
                self._run(batch, prepared, exclusive=True)
                return
        self._run(batch, prepared, exclusive=False)

    def _form(self) -> tuple[list[PendingText], bool]:
        """Waits for texts and chooses those of the next batch. Returns them, and whether they get the whole device.

        The list is empty if no request needs the waiting texts any longer, and if the batcher stops.
        """
        with self._arrived:
            self._arrived.wait_for(lambda: self._arriving or self._waiting or self._stopping)
            room = max(0, WINDOW - len(self._waiting))
            arrived = [self._arriving.popleft() for _ in range(min(room, len(self._arriving)))]
        if self._stopping:
            return [], False
        self._tokenize_all(arrived)
        del arrived  # otherwise these texts stay in memory until the next ones arrive
        self._waiting = waiting = self._wanted(self._waiting)
        if not waiting:
            return [], False
        plan = self.plan
        exclusive = bool(plan.threads_alone) and not self.cpu_contended and self._idle == plan.runs
        exclusive = exclusive and len(waiting) <= plan.runs and self._in_one_batch(waiting)
        budget = plan.max_batch_tokens if exclusive else self._budget(waiting)
        fill = 0.0 if plan.remote else MIN_FILL
        batch = pack(waiting, budget, plan.max_batch_texts, fill, same_length=plan.same_length)
        chosen = set(batch)
        self._waiting = [pending for pending in waiting if pending not in chosen]
        return batch, exclusive

    def _tokenize_all(self, pending_texts: list[PendingText]) -> None:
        """Tokenizes those of the texts that a request still waits for, and adds them to `_waiting`."""
        start = time.perf_counter()
        wanted = self._wanted(pending_texts)
        failed: list[PendingText] = []
        for side in ("right", "left"):
            group = [pending for pending in wanted if pending.side == side]
            if group:
                failed += self._tokenize_group(group)
        spent = time.perf_counter() - start
        for pending in wanted:
            pending.tokenization = spent
        self._deliver(failed)
        self._waiting += [pending for pending in wanted if pending.tokens is not None]

    def _tokenize_group(self, pending_texts: list[PendingText]) -> list[PendingText]:
        try:
            results = self.tokenize([pending.content for pending in pending_texts], pending_texts[0].side)
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

    def _in_one_batch(self, waiting: Sequence[PendingText]) -> bool:
        """Whether texts may share a batch. If not, runs of one thread side by side finish sooner than runs of all
        threads one after the other."""
        same = self.plan.same_length
        return not same or len({rounded_up(pending.length, same) for pending in waiting}) <= 1

    def _budget(self, waiting: Sequence[PendingText]) -> int:
        """Maximum number of tokens in the next batch, padding included; at most `max_batch_tokens`.

        If several threads are idle, the maximum is the number of waiting tokens divided by the number of idle threads.
        So each idle thread gets some of the texts, and the two texts of a pair run in parallel. With a remote encoder,
        the maximum is always `max_batch_tokens`.
        """
        idle = min(self._idle, self.plan.runs)
        if idle < 2 or self.plan.remote:
            return self.plan.max_batch_tokens
        return min(self.plan.max_batch_tokens, -(-sum(pending.length for pending in waiting) // idle))

    def _attempt(self, step: Callable[[], T]) -> T | IsosimError:
        try:
            return step()
        except IsosimError as known:
            return known
        except Exception as unknown:  # a bad batch must not end the thread
            log.exception("the encoder failed")
            return BackendFailure(f"the encoder failed: {type(unknown).__name__}")

    def _prepare(self, batch: list[PendingText]) -> Any:
        """The prepared batch, or the error."""
        ids = [pending.tokens.ids for pending in batch if pending.tokens is not None]
        return self._attempt(lambda: self.encoder.prepare(ids))

    def _run(self, batch: list[PendingText], prepared: Any, *, exclusive: bool) -> None:
        if not self._encode(batch, prepared, exclusive=exclusive) and len(batch) > 1:
            log.warning("a batch of %d texts failed, so they run one by one: %s", len(batch), batch[0].error)
            for pending in batch:  # one by one, so that only the bad text fails
                pending.error = None
                self._device.acquire()
                self._encode([pending], self._prepare([pending]), exclusive=exclusive)
        self._deliver(batch)

    def _encode(self, batch: list[PendingText], prepared: Any, *, exclusive: bool) -> bool:
        """Encodes a prepared batch, and releases the device. If it fails, stores the error in all texts of the batch.

        Returns False if a text of the batch may have caused the failure: the texts must then be tried one by one.
        Returns True after a success, and after an error that no text can cause (`NO_TEXTS_FAULT`).
        """
        start = time.perf_counter()
        self._runs_since[threading.get_ident()] = time.monotonic()
        found: Vectors | IsosimError = prepared
        if not isinstance(prepared, IsosimError):
            found = self._attempt(lambda: complete(self.encoder.run(prepared, exclusive=exclusive), len(batch)))
        spent = time.perf_counter() - start
        del self._runs_since[threading.get_ident()]
        self._device.release()
        time.sleep(0)  # releases the interpreter's lock, so that the thread whose batch is prepared starts at once
        for pending in batch:
            pending.queue = start - pending.arrived - pending.tokenization
            pending.inference = spent
        self.on_batch([pending.length for pending in batch])
        if isinstance(found, IsosimError):
            for pending in batch:
                pending.error = found
            return isinstance(found, NO_TEXTS_FAULT)
        for pending, vector in zip(batch, found, strict=True):
            _, truncated, unreadable, unknown_hash = pending.tokens or Tokens((), truncated=False)
            # The vector is copied: a cached view of one row would keep the vectors of the whole batch in memory.
            pending.result = PooledVector(vector.copy(), pending.length, truncated, unreadable, unknown_hash)
        judge_together((pending.judge, pending.result) for pending in batch)
        rate = (1 if exclusive else self.plan.runs) * sum(pending.size for pending in batch) / max(spent, 1e-6)
        self.rate = rate if not self.rate else 0.9 * self.rate + 0.1 * rate
        return True

    def _wanted(self, pending_texts: Iterable[PendingText]) -> list[PendingText]:
        """The texts that a request still waits for. Delivers the others, so that the queue has their room again.

        Reads `waiters` only once for each text, because the event loop may change it at any time.
        """
        wanted: list[PendingText] = []
        gone: list[PendingText] = []
        for pending in pending_texts:
            (wanted if pending.waiters else gone).append(pending)
        self._deliver(gone)
        return wanted

    def _deliver(self, pending_texts: list[PendingText]) -> None:
        if pending_texts and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._finish, pending_texts)

    def _finish(self, pending_texts: list[PendingText]) -> None:  # runs on the event loop
        self.queued -= len(pending_texts)
        self.queued_size -= sum(pending.size for pending in pending_texts)
        for pending in pending_texts:
            self.on_done(pending)


def complete(vectors: Vectors, count: int) -> Vectors:
    """Raises ValueError if there are not `count` vectors."""
    if len(vectors) != count:
        raise ValueError(f"{len(vectors)} vectors for {count} texts")
    return vectors


def give_way() -> None:
    """Lowers the priority of the calling thread."""
    with contextlib.suppress(OSError, AttributeError):  # threads have priorities of their own only on Linux
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


def retry_after(wait: float) -> int:
    """Value of the Retry-After header: whole seconds, 1 to 60."""
    return max(1, min(60, round(wait)))


def pack(
    waiting: Sequence[PendingText], max_tokens: int, max_texts: int, min_fill: float = MIN_FILL, same_length: int = 0
) -> list[PendingText]:
    """The oldest text and the texts nearest to it in length: at most `max_tokens` tokens, padding included.

    `waiting` is in order of arrival. A text longer than `max_tokens` becomes a batch of its own. For `same_length`, see
    `BatchingPlan`.
    """
    oldest, length = waiting[0], max(waiting[0].length, 1)
    if same_length:
        length = rounded_up(length, same_length)
        waiting = [pending for pending in waiting if rounded_up(max(pending.length, 1), same_length) == length]
        return waiting[: max(1, min(max_texts, max_tokens // length))]
    batch, longest, real = [oldest], length, length
    for pending in sorted(waiting[1:], key=lambda other: abs(other.length - length)):
        widest = max(longest, pending.length)
        padded = widest * (len(batch) + 1)
        if len(batch) == max_texts or padded > max_tokens or real + pending.length < min_fill * padded:
            break
        batch.append(pending)
        longest, real = widest, real + pending.length
    return batch
