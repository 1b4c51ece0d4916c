"""Calibration jobs: what is asked, how far it is, and the states it passes through.

                 begin                 end
    QUEUED ----------------> RUNNING ---------> SUCCEEDED, FAILED
     |  ^                     |    ^
     |  | requeue   interrupt |    | begin: the queue hands a dead attempt over again
     |  |                     v    |
     |  +---------------- INTERRUPTED ---------> FAILED: it was not retried in time
     +----------------------> (its process died before it could begin)

QUEUED, RUNNING and INTERRUPTED become CANCELLED when a caller cancels, and FAILED when their time is over. A state that
has ended never changes. `Job.become` refuses every other change; `adapters/jobs/store.py` writes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, Self

from service.core.errors import Conflict


class Status(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"  # its worker died; can be retried

    @property
    def ended(self) -> bool:
        """Nothing more will happen, and the posted text is gone."""
        return not NEXT[self]


NEXT: dict[Status, frozenset[Status]] = {
    Status.QUEUED: frozenset({Status.RUNNING, Status.INTERRUPTED, Status.CANCELLED, Status.FAILED}),
    Status.RUNNING: frozenset(Status) - {Status.QUEUED},
    Status.INTERRUPTED: frozenset(Status) - {Status.SUCCEEDED},
    **dict.fromkeys((Status.SUCCEEDED, Status.FAILED, Status.CANCELLED), frozenset()),
}


METHODS = (
    "auto", "identity", "centring", "mean-direction", "sn", "nulling", "tempered", "whitening", "whitening-k",
    "partial", "soft", "flow", "flow-paper", "soft-flow",
)  # fmt: skip
PROMOTIONS = ("if_better", "always", "never")
# Of a stored field that releases up to 0.1.0 do not know: it is written only where it differs from its default.
LATER = {"later": True}


class LabelledPair(NamedTuple):
    """Two sentences, 0 or 1 or a grade, and how many pairs of the population the pair stands for.

    Where pairs were not drawn with equal probability, the weight is the inverse of a pair's.
    """

    a: str
    b: str
    label: float
    weight: float = 1.0


NORMALIZATIONS = ("none", "as-norm", "csls")


@dataclass(frozen=True)
class JobRequest:
    """What a calibration was asked to do. `encoder` is the digest it is for, `encoder_id` where to find it."""

    domain: str
    encoder: str
    encoder_id: str
    method: str = "auto"
    promote: str = "if_better"
    seed: int = 0
    normalization: str = "none"
    sentences: int = 0  # as posted, duplicates included
    labels: int = 0  # labelled pairs, as posted
    base: int | None = None  # a version that gets labels; then there is no text, and method and scale stay its own
    champion: int | None = None  # with a base: when the labels were posted; else when the first attempt began
    generation: int = field(default=0, metadata=LATER)  # how often the domain had been deleted at the posting


@dataclass(frozen=True)
class Job:
    """A job's record. Times are ISO 8601, UTC; progress 0–1."""

    id: str
    request: JobRequest
    status: Status = Status.QUEUED
    stage: str = "queued"
    progress: float = 0.0
    attempt: int = 0
    created: str = ""
    started: str | None = None
    finished: str | None = None
    heartbeat: float = 0.0  # seconds since the epoch
    version: int | None = None
    promoted: bool | None = None
    report: dict[str, Any] | None = None
    error: str | None = None
    notices: list[str] = field(default_factory=list)
    traceparent: str | None = None  # of the request that posted it (W3C), where that was traced
    waited: float = field(default=0.0, metadata=LATER)  # s, interrupted, as those who looked after it have counted

    def become(self, status: Status, **changes: Any) -> Self:
        """The job in its next state.

        Raises:
            Conflict: no job in this state can become that.
        """
        if status not in NEXT[self.status]:
            raise Conflict(f"job {self.id} is {self.status}; it cannot become {status}")
        return replace(self, status=status, **changes)


class JobRunner(Protocol):
    """Gets a stored job run: by a child process here, or by a worker behind Redis."""

    async def available(self) -> None:
        """Raises Unavailable, with the remedy, where nothing could run a job."""

    async def submit(self, job_id: str, attempt: int) -> None:
        """Hands an attempt over; handing the same one over twice runs it once.

        Raises:
            Unavailable: it could not be handed over.
        """

    async def recover(self, waiting: Sequence[Job]) -> None:
        """Hands queued jobs over that got lost on their way; those that did not are left alone."""

    async def stop(self, job_id: str) -> None:
        """Ends the job's process if it runs; after a return, none is running or about to."""
