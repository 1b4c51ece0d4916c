"""Follows a job until it ends, by asking for its state again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ._answers import Job, Match
from ._call import Answered, Call, Sender
from .errors import IsosimError, JobCancelled, JobError, JobFailed, WaitTimeout

S = TypeVar("S", Job, Match)

# Seconds between two looks at a job: FIRST at its beginning, a tenth of its age later, at most MOST. Unmeasured.
FIRST, MOST = 0.1, 5.0
ENDS: dict[str, type[JobError]] = {"failed": JobFailed, "cancelled": JobCancelled}


def followed(look: Call[S], progress: Callable[[S], object] | None, timeout: float | None) -> Answered[S]:
    """Waits for the end of a job. `progress` is called with each new state. An error ends the wait only after all
    retries.

    Raises:
        JobError: the job ended without success. WaitTimeout: the time is up.
    """

    async def run(sender: Sender) -> S:
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
            if state != last and progress is not None:
                progress(state)
            last = state
            if state.succeeded:
                return state
            if state.ended:
                why = f": {state.error}" if state.error else ""
                what = f"calibration {state.id} of {state.domain!r}" if isinstance(state, Job) else f"match {state.id}"
                raise ENDS.get(state.status, JobError)(f"{what} {state.status}{why}", state)
            pause = min(FIRST + (clock() - begun) / 10, MOST)
            if clock() + pause >= deadline:
                raise too_late()
            await sender.connections.sleep(pause)

    return run
