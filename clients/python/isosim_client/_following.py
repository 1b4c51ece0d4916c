"""Follows a job by its server-sent events, until it ends."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from . import _calibrating, _matching
from ._answers import Job, Match
from ._call import Answered, Call, Streamed
from ._reading import read
from ._retries import Repeat, Tries
from ._upload import Source
from .errors import ConnectionLost, IsosimError, TimedOut, UnexpectedAnswer, WaitTimeout, job_error

if TYPE_CHECKING:
    from ._sending import Sender

S = TypeVar("S", Job, Match)

SILENCE = 30.0  # seconds without data; then the client reconnects, because the connection may be dead
AGAIN = 1.0  # seconds before the client reconnects, if the stream ends before the job


class Events:
    """Parses the bytes of a `text/event-stream` and yields the JSON of each event.

    Only LF and CRLF end a line. Other characters that end a line in Python's `splitlines` may occur inside a text.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[Any]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            content = line.removesuffix(b"\r")
            if content.startswith(b"data:"):
                self._data.append(content[5:])
            elif not content and self._data:
                event, self._data = b"\n".join(self._data), []
                try:
                    yield json.loads(event)
                except ValueError:
                    raise UnexpectedAnswer(f"an event is not JSON: {event[:80]!r}") from None


@dataclass(frozen=True)
class Watch(Generic[S]):
    """Yields a job's state now and after each change, until it ends, over several connections if necessary."""

    call: Call[S]  # asks for the job's state
    kind: type[S]
    timeout: float | None  # seconds; None: without limit

    async def __call__(self, sender: Sender) -> AsyncGenerator[S, None]:
        """Raises WaitTimeout if the time is up; otherwise an error only if no retries are left."""
        events = replace(self.call, path=f"{self.call.path}/events", headers={"accept": "text/event-stream"})
        clock = sender.retries.clock
        deadline = float("inf") if self.timeout is None else clock() + self.timeout
        tries, last = Tries(sender.retries), None

        def too_late() -> WaitTimeout:
            state = "its state is unknown" if last is None else f"it is {last.status}"
            return WaitTimeout(f"the time limit of the wait is over, but the job goes on; {state}", last)

        while True:
            failure, heard, parser = None, False, Events()
            try:
                async with sender.open(events, max(min(SILENCE, deadline - clock()), 0.001)) as chunks:
                    async for chunk in chunks:
                        for value in parser.feed(chunk):
                            state, heard = read(self.kind, value), True
                            if state != last:
                                last = state
                                yield state
                            if state.ended:
                                return
                        if clock() >= deadline:
                            break
            except IsosimError as error:
                failure = error
            if heard:
                tries = Tries(sender.retries)
            pause: float | None = AGAIN
            if heard and isinstance(failure, TimedOut):
                pause = 0.0  # reconnects at once after SILENCE, and does not count this as a retry
            elif clock() < deadline and (failure is not None or not heard):
                failure = failure or ConnectionLost("the event stream ended before the job did")
                pause = tries.pause_after(failure, Repeat.SAFE)
                if pause is None:
                    raise failure
            if clock() + (pause or 0.0) >= deadline:
                raise too_late() from failure
            await sender.sleep(pause or 0.0)


def ended(watch: Watch[S], progress: Callable[[S], object] | None) -> Answered[S]:
    """Waits for the end of a job. Raises JobError if it ends without success."""

    async def run(sender: Sender) -> S:
        last: Any = None
        async for last in watch(sender):
            if progress is not None:
                progress(last)
        if not last.succeeded:
            raise job_error(last)
        found: S = last
        return found

    return run


def events(job: Job | str, *, timeout: float | None = None) -> Streamed[Job]:
    """Yields a job's state now and after each change, until the job ends. Reconnects if the connection is lost.

    Args:
        job: the job or its id.
        timeout: maximum number of seconds to wait; None waits without limit.

    Raises:
        NotFound: no such job. WaitTimeout: the time is up; the job continues.
    """
    return Watch(_calibrating.job(job), Job, timeout)


def wait(
    job: Job | str, *, progress: Callable[[Job], object] | None = None, timeout: float | None = None
) -> Answered[Job]:
    """Waits until a job has ended.

    The job continues if the program stops waiting, for example after Ctrl-C or the cancellation of an asyncio task.

    Args:
        job: the job or its id.
        progress: called with each new state, for example to show `stage` and `progress`.
        timeout: maximum number of seconds to wait; None waits without limit.

    Returns:
        The job that has succeeded, with its `version`, `promoted` and `report`.

    Raises:
        JobFailed, JobCancelled: the job ended without success. `error.job` is its last state.
        WaitTimeout: the time is up; the job continues. NotFound: no such job.
    """
    return ended(Watch(_calibrating.job(job), Job, timeout), progress)


def wait_match(
    match: Match | str, *, progress: Callable[[Match], object] | None = None, timeout: float | None = None
) -> Answered[Match]:
    """Waits until a match has ended, as `wait` does for a calibration.

    Returns:
        The match that has succeeded.

    Raises:
        JobFailed, JobCancelled, WaitTimeout, NotFound: as `wait` does.
    """
    return ended(Watch(_matching.match_state(match), Match, timeout), progress)


def match(
    a: Source,
    b: Source | None = None,
    *,
    domain: str | None = None,
    column: str | int | None = None,
    column_b: str | int | None = None,
    form: str = "pairs",
    at_most: int | None = None,
    fmr: float | None = None,
    false_hit_rate: float | None = None,
    similarity: float | None = None,
) -> Streamed[dict[str, Any]]:
    """Yields the pairs of texts that mean the same, best first: in one file, or between two.

    Starts a match, waits until it has succeeded, and reads its pairs: those that reach the target, or as many as there
    are texts. The match stays on the server for a day; `start_match`, `judge` and `result` use it again.

    Args:
        a, b, domain, column, column_b: as for `start_match`. form, at_most: as for `result`.
        fmr, false_hit_rate, similarity: as for `match_state`.

    Yields:
        Dictionaries with row_a, row_b, text_a, text_b, similarity, percentile, probability, label and the other
            columns.

    Raises:
        JobFailed, JobCancelled: the match ended without a result. Otherwise as `start_match` and `match_state`.
    """
    start = _matching.start_match(a, b, domain=domain, column=column, column_b=column_b)

    async def stream(sender: Sender) -> AsyncGenerator[dict[str, Any], None]:
        started = await start(sender)
        await wait_match(started)(sender)
        rest = b""
        found = _matching.result(
            started, form=form, at_most=at_most, fmr=fmr, false_hit_rate=false_hit_rate, similarity=similarity
        )
        async with aclosing(found(sender)) as pieces:
            async for piece in pieces:
                *lines, rest = (rest + piece).split(b"\n")
                for line in filter(None, lines):
                    yield json.loads(line)

    return stream
