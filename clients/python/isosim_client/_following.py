"""Follows a job's server-sent events, over several connections if necessary; shows its progress on a terminal."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from . import _calibrating, _matching
from ._answers import Job, Match
from ._call import Call
from ._reading import read
from ._retries import Repeat, Retries, Tries
from .errors import ConnectionLost, IsosimError, TimedOut, UnexpectedAnswer, WaitTimeout, job_error

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
class Watch:
    """The job to follow, and how: `timeout` in seconds or None, `progress` for a bar on the terminal."""

    call: Call[Any]  # asks for the job's state
    timeout: float | None
    progress: bool | Callable[[Any], object] = False
    kind: type[Job | Match] = Job


def events(job: Job | str, *, timeout: float | None = None) -> Watch:
    """Yields a job's state now and after each change, until the job ends. Reconnects if the connection is lost.

    Args:
        job: the job or its id.
        timeout: maximum number of seconds to wait; None waits without limit.

    Raises:
        NotFound: no such job. WaitTimeout: the time is up; the job continues.

    Example:
        >>> newest = client.jobs()[0]
        >>> for job in client.events(newest):
        ...     print(job.status, job.progress)
        running 0.6
        succeeded 1.0
    """
    return Watch(_calibrating.job(job), timeout)


def wait(job: Job | str, *, progress: bool = True, timeout: float | None = None) -> Watch:
    """Waits until a job has ended. Shows a progress bar on a terminal if `isosim-client[progress]` is installed.

    The job continues if the program stops waiting, for example after Ctrl-C or the cancellation of an asyncio task.

    Args:
        job: the job or its id.
        progress: whether to show the bar.
        timeout: maximum number of seconds to wait; None waits without limit.

    Returns:
        The job that has succeeded, with its `version`, `promoted` and `report`.

    Raises:
        JobFailed, JobCancelled: the job ended without success. `error.job` is its last state.
        WaitTimeout: the time is up; the job continues. NotFound: no such job.

    Example:
        >>> newest = client.jobs()[0]
        >>> done = client.wait(newest)
        >>> done.version, done.promoted
        (3, True)
    """
    return Watch(_calibrating.job(job), timeout, progress)


def wait_match(
    match: Match | str, *, progress: bool | Callable[[Match], object] = True, timeout: float | None = None
) -> Watch:
    """Waits until a match has ended, as `wait` does for a calibration. `progress` may be a function of the state.

    Returns:
        The match that has succeeded.

    Raises:
        JobFailed, JobCancelled, WaitTimeout, NotFound: as `wait` does.

    Example:
        >>> newest = client.matches()[0]
        >>> client.wait_match(newest).candidates
        15211
    """
    return Watch(_matching.match_state(match), timeout, progress, Match)


class Following:
    """Follows one job until it ends or the watch's `timeout` has passed. The time begins now."""

    def __init__(self, watch: Watch, retries: Retries) -> None:
        self.last: Job | Match | None = None
        self._call, self._kind = watch.call, watch.kind
        self._retries, self._tries = retries, Tries(retries)
        self._deadline = None if watch.timeout is None else retries.clock() + watch.timeout
        self._events, self._heard = Events(), False

    @property
    def ended(self) -> bool:
        return self.last is not None and self.last.ended

    def connect(self) -> Call[Any]:
        """The request that opens the next connection."""
        self._events, self._heard = Events(), False
        return replace(self._call, path=f"{self._call.path}/events", headers={"accept": "text/event-stream"})

    def seconds_of_silence(self) -> float:
        """Maximum number of seconds without data before the client reconnects."""
        return SILENCE if self._deadline is None else max(min(SILENCE, self._left()), 0.001)

    def _left(self) -> float:
        return float("inf") if self._deadline is None else self._deadline - self._retries.clock()

    def feed(self, chunk: bytes) -> Iterator[Any]:
        """Yields the job's states in a chunk of the stream. Skips a state that equals the last state.

        Raises:
            WaitTimeout: the time is up.
        """
        for value in self._events.feed(chunk):
            state = read(self._kind, value)
            self._heard = True
            if state != self.last:
                self.last = state
                yield state
        if not self.ended and self._left() <= 0:
            raise self._too_late()

    def pause(self, error: IsosimError | None) -> float:
        """Seconds to wait before the next connection, after an error or an early end of the stream.

        Raises:
            IsosimError: the error, if no retries are left.
            WaitTimeout: the time is up, or would be up during the pause.
        """
        if self._left() <= 0:
            raise self._too_late() from error
        if self._heard:
            self._tries = Tries(self._retries)
        pause = AGAIN
        if self._heard and isinstance(error, TimedOut):
            pause = 0.0  # reconnects at once after SILENCE, and does not count this as a retry
        elif error is not None or not self._heard:
            failure = error or ConnectionLost("the event stream ended before the job did")
            found = self._tries.pause_after(failure, Repeat.SAFE)
            if found is None:
                raise failure
            pause = found
        if pause >= self._left():
            raise self._too_late() from error
        return pause

    def _too_late(self) -> WaitTimeout:
        state = "its state is unknown" if self.last is None else f"it is {self.last.status}"
        return WaitTimeout(f"the time limit of the wait is over, but the job goes on; {state}", self.last)

    def outcome(self) -> Any:
        """The job's last state, if it has succeeded.

        Raises:
            JobError: the job ended without success.
            ConnectionLost: no state of the job has arrived.
        """
        if self.last is None:
            raise ConnectionLost("the event stream ended before the job did")
        if not self.last.succeeded:
            raise job_error(self.last)
        return self.last


@contextmanager
def bar(wanted: bool | Callable[[Any], object]) -> Iterator[Callable[[Any], object]]:
    """Yields a function that shows a job's state as a progress bar on standard error. The function does nothing if
    `wanted` is False, standard error is not a terminal, or rich is not installed. A function is yielded as it is."""
    if callable(wanted):
        yield wanted
        return
    if not wanted or not sys.stderr.isatty():
        yield lambda _: None
        return
    try:
        from rich.console import Console  # noqa: PLC0415 - an extra, and slow to import
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415
    except ImportError:
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("connecting", total=1.0)
        yield lambda job: progress.update(
            task, completed=job.progress, description=f"{getattr(job, 'domain', 'match')}: {job.stage}"
        )
