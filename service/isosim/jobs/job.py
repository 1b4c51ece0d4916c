"""Jobs (calibrations and matches): request, progress, and the rules by which a job's record changes. Nothing here reads
or writes.

                 begin             publish                 end
    QUEUED ----------------> RUNNING -----> PUBLISHING ---------> SUCCEEDED, FAILED
       ^                      |   ^ |         |   ^
       +----------------------+   +-+         +---+
              give back           begin: its worker has fallen silent

QUEUED and RUNNING become CANCELLED if a client cancels the job. From PUBLISHING on, a version may exist, so the job can
no longer be cancelled, and it stays PUBLISHING in further attempts. SUCCEEDED, FAILED and CANCELLED are final.

A job is held by the worker that runs it. Each attempt has a number; a worker whose attempt has been replaced by another
may not change the job any more.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

from isosim.errors import Conflict, JobCancelled

ATTEMPTS = 3  # attempts until a job whose process or worker dies each time has failed; unmeasured


class Status(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    PUBLISHING = "publishing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """True for a final state. When a job ends, its posted text is deleted."""
        return self in (Status.SUCCEEDED, Status.FAILED, Status.CANCELLED)


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


@dataclass(frozen=True)
class MatchInput:
    """The rows that a job `match` compares: of one file with each other, or of a file with those of a second one.

    `scale` says where the similarities get their meaning from: `posted` (a calibration to the posted text, which is
    kept with the job's result), `new` (the same, published as the first version of the request's domain), or `domain`
    (the version `base` of the request's domain, or its champion).
    """

    scale: str
    rows: tuple[int, ...]  # number of rows with text, for each file
    columns: tuple[tuple[str, ...], ...]  # names of the other columns, for each file
    seconds: float = 0.0  # estimate of the run time, made when the job was posted
    files: tuple[str, ...] = ()  # names of the files of a form


@dataclass(frozen=True)
class JobRequest:
    """Parameters of a calibration, or with `match` of a match. `encoder` is the encoder's digest, `encoder_id` its name
    in the store."""

    domain: str
    encoder: str
    encoder_id: str
    method: str = "auto"
    promote: str = "if_better"
    seed: int = 0
    sentences: int = 0  # number of posted sentences, duplicates included
    labels: int = 0  # number of posted labelled pairs
    kind: str = "matches"  # one of LABEL_KINDS
    # None for a job with text. Otherwise the job only adds labels to the version with this number. The new version has
    # the same weights and reference distribution.
    base: int | None = None
    # The domain's champion when the first attempt began; for a job with a base, when the labels were posted.
    champion: int | None = None
    epoch: int = 0  # how often the domain was deleted before the job was posted
    match: MatchInput | None = None  # None for a calibration


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
    version: int | None = None
    promoted: bool | None = None
    report: dict[str, Any] | None = None
    error: str | None = None
    notices: list[str] = field(default_factory=list)
    owner: str = ""  # id of the API key that posted the job (access/grants.py)
    size: int = 0  # bytes of posted text, labels and vectors
    input: str = ""  # name of the upload with the posted text
    fingerprint: str | None = None  # of the posted content, if it was posted with an idempotency key
    worker: str | None = None  # the worker that holds the job; None if a worker may take it
    spared: int = 0  # attempts that ended because their worker was told to stop; they do not count

    @property
    def exhausted(self) -> bool:
        """Whether no further attempt may begin."""
        return self.attempt - self.spared >= ATTEMPTS

    def begun(self, worker: str, now: str, champion: int | None) -> "Job":
        """The job in its next attempt. A worker that still holds the job has fallen silent."""
        request = self.request
        # For a job with a base, the champion was already recorded when the labels were posted.
        if self.attempt == 0 and request.base is None:
            request = replace(request, champion=champion)
        return replace(
            self.free() if self.worker is None else self.given_back(self.silence),
            request=request,
            status=Status.PUBLISHING if self.status is Status.PUBLISHING else Status.RUNNING,
            stage="starting",
            attempt=self.attempt + 1,
            started=now,
            worker=worker,
        )

    @property
    def silence(self) -> str:
        # Kubernetes ends a whole container whose memory runs out, so that no worker is left to say so.
        return f"its worker fell silent while {self.stage}, perhaps because memory ran out"

    def free(self) -> "Job":
        status = Status.PUBLISHING if self.status is Status.PUBLISHING else Status.QUEUED
        return replace(self, status=status, stage="queued", progress=0.0, worker=None)

    def given_back(self, why: str, *, counts: bool = True) -> "Job":
        """The job when its attempt could not end; another may begin. `counts`: as one of the ATTEMPTS."""
        notice = f"attempt {self.attempt}: {why}"
        return replace(self.free(), notices=[*self.notices, notice], spared=self.spared + (not counts))

    def check_held(self, attempt: "Job") -> "Job":
        """This record, unchanged. Raises JobCancelled unless it is of the same attempt, which has not ended."""
        if self.status is Status.CANCELLED:
            raise JobCancelled(f"job {self.id} was cancelled")
        if (self.worker, self.attempt, self.input) != (attempt.worker, attempt.attempt, attempt.input):
            raise JobCancelled(f"attempt {attempt.attempt} of job {self.id} has been replaced by another")
        return self

    def ended(self, status: Status, now: str, **facts: Any) -> "Job":
        """The job with its outcome: `version`, `promoted` and `report`, or `error`."""
        progress = 1.0 if status is Status.SUCCEEDED else self.progress
        stage = status.value
        return replace(self, status=status, stage=stage, progress=progress, finished=now, worker=None, **facts)

    def given_up(self, now: str) -> "Job":
        """The failed job after its last attempt."""
        last = self if self.worker is None else self.given_back(self.silence)
        return last.ended(Status.FAILED, now, error=f"{last.notices[-1]}; no further attempt is made")

    def cancelled(self, now: str) -> "Job":
        """Raises Conflict if it is too late."""
        if self.status.ended:
            raise Conflict(f"job {self.id} is {self.status} already")
        if self.status is Status.PUBLISHING:
            raise Conflict(f"job {self.id} is publishing its result and can no longer be cancelled")
        return self.ended(Status.CANCELLED, now)
