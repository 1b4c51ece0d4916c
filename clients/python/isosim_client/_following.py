"""Follows a job until it ends, by asking for its state again and again."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import TypeVar

from ._answers import Job, Match
from ._call import Answered, Call, Sender, Streamed
from .errors import IsosimError, JobCancelled, JobError, JobFailed, WaitTimeout

S = TypeVar("S", Job, Match)

# Seconds between two looks at a job: FIRST at its beginning, a tenth of its age later, at most MOST. Unmeasured.
FIRST, MOST = 0.1, 5.0
ENDS: dict[str, type[JobError]] = {"failed": JobFailed, "cancelled": JobCancelled}


def states(look: Call[S], timeout: float | None) -> Streamed[S]:
    """Yields a job's state now and after each change, until it ends. An error ends it only after all retries.

    Raises:
        WaitTimeout: the time is up.
    """

    async def follow(sender: Sender) -> AsyncGenerator[S, None]:
        clock, last = sender.retries.clock, None
        begun = clock()
        deadline = float("inf") if timeout is None else begun + timeout

        def too_late() -> WaitTimeout:
            known = "its state is unknown" if last is None else f"it is {last.status}"
            return WaitTimeout(f"the time limit of the wait is over, but the job goes on; {known}", last)

        while True:
            try:
                state = await sender.send(look, within=deadline - clock())
            except IsosimError as error:
                if clock() < deadline:
                    raise
                raise too_late() from error
            if state != last:
                last = state
                yield state
            if state.ended:
                return
            pause = min(FIRST + (clock() - begun) / 10, MOST)
            if clock() + pause >= deadline:
                raise too_late()
            await sender.connections.sleep(pause)

    return follow


def ended(states: Streamed[S], progress: Callable[[S], object] | None) -> Answered[S]:
    """Waits for the end of a job. Raises JobError if it ends without success."""

    async def run(sender: Sender) -> S:
        async for state in states(sender):
            if progress is not None:
                progress(state)
        if state.succeeded:
            return state
        why = f": {state.error}" if state.error else ""
        what = f"calibration {state.id} of {state.domain!r}" if isinstance(state, Job) else f"match {state.id}"
        raise ENDS.get(state.status, JobError)(f"{what} {state.status}{why}", state)

    return run
