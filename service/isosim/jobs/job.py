"""Calibration jobs: request, progress, and the states a job passes through.

                 begin                 end
    QUEUED ----------------> RUNNING ---------> SUCCEEDED, FAILED
     |  ^                     |    ^
     |  | requeue   interrupt |    | begin: the queue delivers the job again, because its worker died
     |  |                     v    |
     |  +---------------- INTERRUPTED ---------> FAILED: the job was not retried in time
     |                        ^
     +------------------------+ interrupt: the process that was started for the job died before `begin`

In addition, QUEUED, RUNNING and INTERRUPTED become CANCELLED if a client cancels the job, and FAILED if the job takes
too long. SUCCEEDED, FAILED and CANCELLED are final. `Job.become` refuses all other changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, Self

from isosim.errors import Conflict


class Status(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"  # the job's worker died; the job can be retried

    @property
    def ended(self) -> bool:
        """True for a final state. When a job ends, its posted text is deleted."""
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
# What labels mean: `matches` are 1 (a match) or 0 (no match); `grades` are similarities from 0 to 1 or from 0 to 5.
LABEL_KINDS = ("matches", "grades")


class LabelledPair(NamedTuple):
    """Two sentences, their label (0 or 1, or a grade), and a weight.

    The weight is the number of pairs that this pair represents. For example, a pair that was drawn for labelling with
    probability 0.01 represents 100 pairs.
    """

    a: str
    b: str
    label: float
    weight: float = 1.0


NORMALIZATIONS = ("none", "as-norm", "csls")


@dataclass(frozen=True)
class JobRequest:
    """Parameters of a calibration. `encoder` is the encoder's digest, `encoder_id` its name in the store."""

    domain: str
    encoder: str
    encoder_id: str
    method: str = "auto"
    promote: str = "if_better"
    seed: int = 0
    normalization: str = "none"
    sentences: int = 0  # number of posted sentences, duplicates included
    labels: int = 0  # number of posted labelled pairs
    kind: str = "matches"  # one of LABEL_KINDS
    # None for a job with text. Otherwise the job only adds labels to the version with this number. The new version has
    # the same weights and reference distribution.
    base: int | None = None
    # The domain's champion when the first attempt began; for a job with a base, when the labels were posted.
    champion: int | None = None
    epoch: int = 0  # how often the domain was deleted before the job was posted


@dataclass(frozen=True)
class Job:
    """A job's record. Times are ISO 8601 in UTC; progress is 0 to 1."""

    id: str
    request: JobRequest
    status: Status = Status.QUEUED
    stage: str = "queued"
    progress: float = 0.0
    attempt: int = 0
    created: str = ""
    started: str | None = None
    finished: str | None = None
    heartbeat: float = 0.0  # time of the worker's last sign of life, in seconds since the epoch
    version: int | None = None
    promoted: bool | None = None
    report: dict[str, Any] | None = None
    error: str | None = None
    notices: list[str] = field(default_factory=list)
    traceparent: str | None = None  # W3C trace context of the request that posted the job, if it was traced
    # Seconds in the state INTERRUPTED, as counted by the processes that monitor jobs.
    waited: float = 0.0
    owner: str = ""  # id of the API key that posted the job (access/grants.py)
    size: int = 0  # bytes of posted text, labels and vectors

    def become(self, status: Status, **changes: Any) -> Self:
        """The job in its next state.

        Raises:
            Conflict: the current state does not allow this change.
        """
        if status not in NEXT[self.status]:
            raise Conflict(f"job {self.id} is {self.status}; it cannot become {status}")
        return replace(self, status=status, **changes)


class JobRunner(Protocol):
    """Runs stored jobs: in a child process of the service, or in a worker that receives them through Redis."""

    async def available(self) -> None:
        """Raises Unavailable, with the remedy, if no process can run a job."""

    async def workers(self) -> int | None:
        """Number of workers that can take a job; None if unknown, or if the service runs jobs without workers."""

    async def submit(self, job_id: str, attempt: int) -> None:
        """Submits an attempt. An attempt that is submitted twice is run once.

        Raises:
            Unavailable: the attempt could not be submitted.
        """

    async def recover(self, waiting: Sequence[Job]) -> None:
        """Submits a `waiting` job again if the queue has lost it."""

    async def stop(self, job_id: str) -> None:
        """Ends the process that runs the job. Afterwards no process runs or starts the job."""
