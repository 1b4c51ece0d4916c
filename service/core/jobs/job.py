"""Calibration jobs: request, progress, and the states a job passes through.

                 begin                 end
    QUEUED ----------------> RUNNING ---------> SUCCEEDED, FAILED
     |  ^                     |    ^
     |  | requeue   interrupt |    | begin: the queue delivers an attempt again after its worker died
     |  |                     v    |
     |  +---------------- INTERRUPTED ---------> FAILED: it was not retried in time
     +----------------------> (its process died before it could begin)

QUEUED, RUNNING and INTERRUPTED become CANCELLED when a caller cancels, and FAILED when their time limit passes. Final
states never change. `Job.become` refuses every other change; `adapters/jobs/store.py` writes them.
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
        """True for a final state; the posted text is then deleted."""
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
# Marks stored fields that releases up to 0.1.0 do not know: written only if they differ from the default.
LATER = {"later": True}


class LabelledPair(NamedTuple):
    """Two sentences, their label (0 or 1, or a grade), and how many pairs of the population the pair stands for.

    If pairs were drawn with unequal probabilities, a pair's weight is the inverse of its probability.
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
    sentences: int = 0  # as posted, duplicates included
    labels: int = 0  # labelled pairs, as posted
    base: int | None = None  # the version that labels are added to; there is no text, and its method and scale are kept
    champion: int | None = None  # when the labels were posted (with a base), else when the first attempt began
    generation: int = field(default=0, metadata=LATER)  # deletions of the domain before the job was posted


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
    heartbeat: float = 0.0  # seconds since the epoch
    version: int | None = None
    promoted: bool | None = None
    report: dict[str, Any] | None = None
    error: str | None = None
    notices: list[str] = field(default_factory=list)
    traceparent: str | None = None  # of the request that posted it (W3C), if traced
    waited: float = field(default=0.0, metadata=LATER)  # s spent interrupted, as counted by those that monitor jobs

    def become(self, status: Status, **changes: Any) -> Self:
        """The job in its next state.

        Raises:
            Conflict: the current state does not allow this change.
        """
        if status not in NEXT[self.status]:
            raise Conflict(f"job {self.id} is {self.status}; it cannot become {status}")
        return replace(self, status=status, **changes)


class JobRunner(Protocol):
    """Runs stored jobs: in a child process here, or in a worker through Redis."""

    async def available(self) -> None:
        """Raises Unavailable, with the remedy, if no process can run a job."""

    async def submit(self, job_id: str, attempt: int) -> None:
        """Submits an attempt; submitting the same attempt twice runs it once.

        Raises:
            Unavailable: the attempt could not be submitted.
        """

    async def recover(self, waiting: Sequence[Job]) -> None:
        """Submits again those queued jobs that the queue has lost."""

    async def stop(self, job_id: str) -> None:
        """Ends the job's process; when this returns, none is running and none will start."""
