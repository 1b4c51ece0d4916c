"""Follows a job's server-sent events, over several connections if necessary."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ._answers import Job
from ._calibrating import job as job_call
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


class Following:
    """Follows one job until it ends or `timeout` seconds have passed."""

    def __init__(self, job: Job | str, retries: Retries, timeout: float | None) -> None:
        self.last: Job | None = None
        self._call: Call[Any] = job_call(job)
        self._retries, self._tries = retries, Tries(retries)
        self._deadline = None if timeout is None else retries.clock() + timeout
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

    def feed(self, chunk: bytes) -> Iterator[Job]:
        """Yields the job's states in a chunk of the stream. Skips a state that equals the last state.

        Raises:
            WaitTimeout: the time is up.
        """
        for value in self._events.feed(chunk):
            state = read(Job, value)
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
        return WaitTimeout(f"the time limit of the wait is over, but the calibration goes on; {state}", self.last)

    def outcome(self) -> Job:
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
