"""Jobs in the model store (a folder or a bucket), and the rules by which their states change."""

import hashlib
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from isosim.errors import Conflict, CorruptArtifact, JobCancelled, NotFound
from isosim.jobs.folders import JOB_ID, FolderJobs, JobStorage, Record
from isosim.jobs.job import Job, JobRequest, LabelledPair, Status
from isosim.jobs.objects import BucketJobs
from isosim.jobs.spool import Spool
from isosim.store.artifacts import Garbage, to_facts
from isosim.store.object_storage import opened, remote

SILENCE = 30.0  # seconds without heartbeat until a running job counts as interrupted; workers beat every 2 to 5 s
AT_A_TIME = 32  # number of ended jobs that `newest` reads together


log = logging.getLogger(__name__)
KEPT = 1000  # number of ended jobs whose records are kept


def posted(request: JobRequest) -> dict[str, Any]:
    """The fields of a request that the client posted. Requests with the same idempotency key are compared by these
    fields. The server's own fields may change before the client repeats the request."""
    facts = to_facts(request)
    facts.pop("epoch", None)
    if request.base is not None:
        for name in ("base", "champion", "method", "normalization"):
            del facts[name]
    return facts


def now() -> str:
    return datetime.now(UTC).isoformat()


@dataclass(frozen=True)
class Ended:
    """Facts about an ended job, kept in memory because its record does not change any more."""

    status: Status
    created: str


class JobStore:
    """The jobs of a folder or of a bucket.

    Only one process decides how a job ends: the first that sets `decided` in the record. This process then records the
    end. For example, a worker sets `decided` before it publishes. The API sets `decided` if a client cancels the job.

    A running job counts as interrupted if its heartbeat does not change for SILENCE seconds. Each process measures
    these seconds by its own clock, because the clocks of machines differ and may jump.
    """

    def __init__(self, root: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.root, self.clock = root / "jobs", clock
        self.storage: JobStorage = BucketJobs(opened(root)) if remote(root) else FolderJobs(self.root)
        self._ended: dict[str, Ended] = {}
        # Running jobs: id -> (last heartbeat, time at which this process first read that heartbeat).
        self._seen: dict[str, tuple[float, float]] = {}
        # Interrupted jobs: id -> (value of `waited` that this process last wrote into the record, time of the write).
        self._waiting: dict[str, tuple[float, float]] = {}

    @property
    def distant(self) -> bool:
        """Whether every access is a request over the network."""
        return not self.storage.exclusive

    @property
    def scratch(self) -> Path:
        """A local folder for input that is still arriving."""
        return self.storage.scratch

    def _checked(self, job_id: str) -> str:
        """Returns an id unchanged. Raises NotFound if the id is malformed: ids become part of paths and keys."""
        if not JOB_ID.fullmatch(job_id):
            raise NotFound(f"no calibration job {job_id[:64]!r}")
        return job_id

    def spool(self) -> Spool:
        """A new spool for input that is still arriving."""
        return self.storage.spool()

    def create(
        self,
        request: JobRequest,
        spool: Spool,
        notices: list[str],
        idempotency_key: str | None,
        traceparent: str | None = None,
        owner: str = "",
    ) -> Job:
        """Creates a queued job from the spooled input, or returns the job with the same idempotency key and content.

        Raises:
            Conflict: the idempotency key was used with other content.
        """
        job = Job(
            spool.id, request, created=now(), heartbeat=time.time(), notices=notices, traceparent=traceparent,
            owner=owner, size=spool.size,
        )  # fmt: skip
        fingerprint = hashlib.sha256(orjson.dumps(posted(request)) + spool.digest()).hexdigest()
        self.storage.create(job, spool, idempotency_key, fingerprint)
        if idempotency_key is None:
            return job
        holder = ""
        try:
            while (holder := self.storage.take(idempotency_key, job.id, fingerprint)) != job.id:
                with suppress(NotFound):  # `holder` was just removed, which frees the key: try again
                    return self.read(holder)
            return job
        finally:
            if holder != job.id:  # another job has the key, or `take` raised an error
                self.storage.remove(job.id)

    def has_key(self, idempotency_key: str) -> bool:
        """Whether a job has this idempotency key."""
        return self.storage.taken(idempotency_key)

    def free_keys(self, deleted: Collection[str]) -> None:
        """Frees the idempotency keys of jobs whose domain was deleted."""
        self.storage.free_keys(deleted)

    def read(self, job_id: str) -> Job:
        """The recorded job. A running job whose heartbeat has stopped is returned as interrupted."""
        return self._heard(self._record(job_id))

    def _record(self, job_id: str) -> Job:
        return self.storage.read(self._checked(job_id)).job

    def _heard(self, job: Job) -> Job:
        return interrupted(job) if self._silent(job) else job

    def _silent(self, job: Job) -> bool:
        if job.status is not Status.RUNNING:
            self._seen.pop(job.id, None)
            return False
        now = self.clock()
        beat, since = self._seen.setdefault(job.id, (job.heartbeat, now))
        if beat != job.heartbeat:
            self._seen[job.id] = job.heartbeat, now
            return False
        return now - since > SILENCE

    def beats(self, job_id: str, attempt: int, seconds: float) -> bool:
        """Waits up to `seconds` for a new heartbeat of a running attempt. True if it came or the job ended."""
        before, deadline = self._record(job_id), time.monotonic() + seconds
        while (before.status, before.attempt) == (Status.RUNNING, attempt) and time.monotonic() < deadline:
            time.sleep(0.1)
            now = self._record(job_id)
            if now.heartbeat != before.heartbeat or now.status.ended:
                return True
        return False

    def rested_on(self) -> defaultdict[str, set[int]]:
        """The versions that unended jobs need, by domain: `base` and `champion` of each job's request (see
        `JobRequest`)."""
        versions: defaultdict[str, set[int]] = defaultdict(set)
        for job in self.unended():
            named = (job.request.base, job.request.champion)
            versions[job.request.domain] |= {version for version in named if version is not None}
        return versions

    def survey(self) -> tuple[list[Job], dict[str, Ended]]:
        """The jobs that have not ended, newest first, and facts about ended jobs, by id.

        Each process reads the record of an ended job only once.
        """
        names = [name for name in self.storage.names() if JOB_ID.fullmatch(name)]
        ended = {name: known for name in names if (known := self._ended.get(name)) is not None}
        jobs = []
        for job in self.read_each([name for name in names if name not in ended]):
            if job.status.ended:
                ended[job.id] = Ended(job.status, job.created)
            else:
                jobs.append(job)
        self._ended = ended
        return sorted(jobs, key=lambda job: job.created, reverse=True), ended

    def read_each(self, names: Collection[str]) -> list[Job]:
        """The jobs that exist and have a valid record, in order."""

        def read(name: str) -> Job | None:
            try:
                return self.read(name)
            except NotFound:  # another process has just removed the job
                return None
            except CorruptArtifact as error:
                log.warning("job %s is ignored, because its record cannot be read: %s", name, error)
                return None

        return [job for job in self.storage.read_each(names, read) if job is not None]

    def unended(self) -> list[Job]:
        """All jobs that have not ended, newest first."""
        return self.survey()[0]

    def newest(self) -> Iterator[Job]:
        """Yields all jobs, newest first. Reads ended jobs only when needed, AT_A_TIME at once."""
        unended, ended = self.survey()
        created = {job.id: job.created for job in unended} | {name: one.created for name, one in ended.items()}
        known = {job.id: job for job in unended}
        order = sorted(created, key=lambda name: created[name], reverse=True)
        for start in range(0, len(order), AT_A_TIME):
            names = order[start : start + AT_A_TIME]
            read = {job.id: job for job in self.read_each([name for name in names if name not in known])}
            yield from (job for name in names if (job := known.get(name) or read.get(name)) is not None)

    def all(self) -> list[Job]:
        """All jobs, newest first."""
        return list(self.newest())

    def counts(self) -> Counter[Status]:
        unended, ended = self.survey()
        return Counter([job.status for job in unended] + [one.status for one in ended.values()])

    def begin(
        self, job_id: str, handed: int | None = None, dead: int | None = None, champion: int | None = None
    ) -> Job:
        """Begins the next attempt of the job, on behalf of a worker.

        Args:
            handed: number of attempts that had begun when the job was queued for this worker. If more attempts have
                begun since, the job was queued again, and this delivery is obsolete.
            dead: number of an attempt whose process has died. A new attempt may begin even if the record says that the
                dead attempt is running.
            champion: the domain's current champion. The first attempt of a job without a base records it in the job's
                request. If the champion has changed, a later attempt of a job with `promote: always` does not promote
                its version.

        Raises:
            JobCancelled: the job has ended or is being cancelled.
            Conflict: another worker runs the job, or the delivery is obsolete.
        """

        def step(record: Record) -> Record:
            job, decided = self._heard(record.job), record.decided
            if job.status.ended:
                raise JobCancelled(f"job {job_id} is {job.status}")
            if job.attempt == dead and job.status in (Status.RUNNING, Status.INTERRUPTED):
                decided = False  # the dead attempt may have set `decided`, but has not recorded the end
            elif job.status is Status.RUNNING:
                raise Conflict(f"job {job_id} is running elsewhere")
            elif handed is not None and job.attempt != handed:
                raise Conflict(f"job {job_id} was queued again after attempt {job.attempt}; this delivery is obsolete")
            if decided:
                raise JobCancelled(f"job {job_id} is being cancelled")
            # For a job with a base, the champion was already recorded when the labels were posted.
            if job.attempt == 0 and job.request.base is None:
                job = replace(job, request=replace(job.request, champion=champion))
            attempt = job.attempt + 1
            started = job.become(Status.RUNNING, stage="starting", progress=0.0, attempt=attempt, started=now())
            job = replace(started, heartbeat=time.time(), error=None, waited=0.0)
            return replace(record, job=job, decided=False)

        return self.storage.change(self._checked(job_id), step).job

    def beat(self, job: Job) -> bool:
        """Records an attempt's progress. False if another attempt has taken over, or the job's end is decided."""
        mine = True

        def step(record: Record) -> Record:
            nonlocal mine
            here = (record.job.attempt, record.job.status)
            mine = here == (job.attempt, Status.RUNNING) and not record.decided
            return replace(record, job=job) if mine else record

        self.storage.change(self._checked(job.id), step)
        return mine

    def decide(self, job_id: str, attempt: int | None = None) -> bool:
        """Sets `decided` in the job's record, and returns True. The caller must then record how the job ends.

        Changes nothing and returns False if `decided` is already set, or if another attempt has replaced `attempt`.
        """
        first = False

        def step(record: Record) -> Record:
            nonlocal first
            first = not record.decided and (attempt is None or not superseded(record.job, attempt))
            return replace(record, decided=True) if first else record

        self.storage.change(self._checked(job_id), step)
        return first

    def check_turn(self, job: Job, version: int | None = None) -> None:
        """Raises JobCancelled if another attempt has replaced `job.attempt`.

        Args:
            version: the number under which this attempt is about to publish. In a bucket, the number is recorded. If
                this attempt stalls, the next attempt retires the number (`DomainStore.retire`), and this attempt can no
                longer publish.
        """

        def step(record: Record) -> Record:
            if superseded(record.job, job.attempt):
                raise JobCancelled(f"attempt {job.attempt} of job {job.id} has been replaced by another")
            return replace(record, publishing=version) if version is not None and self.distant else record

        self.storage.change(self._checked(job.id), step)

    def publishing(self, job_id: str) -> int | None:
        """The version number that `check_turn` recorded last, or None. Always None in a folder.

        A stalled attempt may still publish under this number until `DomainStore.retire` retires the number.
        """
        return self.storage.read(self._checked(job_id)).publishing

    def decided(self, job_id: str) -> bool:
        return self.storage.read(self._checked(job_id)).decided

    def end(self, job: Job, status: Status, **facts: Any) -> Job:
        """Deletes the posted text, and then records how the job ends. Call it only after `decide` has returned True.

        Raises:
            JobCancelled: another attempt has replaced this one.
        """

        def step(record: Record) -> Record:
            if job.status is Status.RUNNING and superseded(record.job, job.attempt):
                raise JobCancelled(f"attempt {job.attempt} of job {job.id} has been replaced by another")
            return replace(record, job=self._ended_as(job, status, **facts))

        return self.storage.change(self._checked(job.id), step).job

    def _ended_as(self, job: Job, status: Status, **facts: Any) -> Job:
        progress = 1.0 if status is Status.SUCCEEDED else job.progress
        self.storage.drop_input(job.id)
        return job.become(status, stage=status.value, progress=progress, finished=now(), **facts)

    def time_out(self, job_id: str, limit: float) -> None:
        """Ends a job as failed, because its process was stopped after `limit` seconds. Does nothing if the process had
        already set `decided`."""
        if self.decide(job_id):
            error = f"stopped after {limit:.0f} s, the time limit of a job (ISOSIM_JOB_TIMEOUT)"
            log.error("job %s: %s", job_id, error)
            self.end(self.read(job_id), Status.FAILED, error=error)

    def cancel(self, job_id: str) -> Job:
        """Records that a job is cancelled, unless the job has ended. Call `decide` first, so that no worker publishes
        the job's version."""

        def step(record: Record) -> Record:
            job = self._heard(record.job)
            return record if job.status.ended else replace(record, job=self._ended_as(job, Status.CANCELLED))

        return self.storage.change(self._checked(job_id), step).job

    def requeue(self, job_id: str) -> Job:
        """Sets the status of an interrupted job to queued. The caller then hands the job to the queue, or begins the
        next attempt itself.

        Does not change a job that is already queued. The queue may have lost the job, so the caller hands it to the
        queue again.

        Raises:
            Conflict: the job runs or has ended.
        """

        def step(record: Record) -> Record:
            job = self._heard(record.job)
            if job.status is Status.QUEUED:
                return record
            if job.status is not Status.INTERRUPTED:
                raise Conflict(f"job {job_id} is {job.status}; only an interrupted job can be retried")
            waiting = job.become(Status.QUEUED, stage="queued", progress=0.0, error=None, waited=0.0)
            # The last attempt may have set `decided`, and died before it recorded the end. So `decided` is reset.
            return replace(record, job=waiting, decided=False)

        return self.storage.change(self._checked(job_id), step).job

    def discard(self, job_id: str) -> bool:
        """Removes a job that could not be handed to the queue, and its idempotency key. False if the job has begun."""
        fresh = False

        def step(record: Record) -> Record:
            nonlocal fresh
            fresh = record.job.attempt == 0
            return replace(record, decided=True) if fresh else record  # `begin` then refuses the job

        self.storage.change(self._checked(job_id), step)
        if fresh:
            self.storage.remove(job_id)
            self.storage.free_keys()
        return fresh

    def sweep(self) -> None:
        """Removes what dead processes have left unfinished, including posted text."""
        self.storage.sweep()

    def garbage(self, age: float) -> Iterator[Garbage]:
        """Lists unfinished work of dead processes that has not changed for `age` seconds."""
        return self.storage.garbage(age)

    def expire(self, age: float) -> None:
        """Ends interrupted jobs that were not retried for `age` seconds, and queued jobs whose cancellation was not
        completed. Deletes their text. Then calls `sweep`.

        The record of an interrupted job says how long the job has waited (`waited`, in seconds). Each call adds the
        time since this process's previous call, so the clocks of two machines are never compared. If the process
        restarts, only the time since its last call is lost.
        """
        unended = self.unended()
        self._waiting = {
            job.id: self._waiting[job.id]
            for job in unended
            if job.status is Status.INTERRUPTED and job.id in self._waiting
        }
        for job in unended:
            if job.status in (Status.QUEUED, Status.INTERRUPTED):
                with suppress(NotFound):
                    self._expire(job.id, age)
        self.sweep()

    def _expire(self, job_id: str, age: float) -> None:
        now = self.clock()

        def step(record: Record) -> Record:
            job = self._heard(record.job)
            if job.status is Status.QUEUED and record.decided:
                # A process decided to cancel the job, but has not recorded the cancellation. If the process calls
                # `cancel` later, nothing changes.
                return replace(record, job=self._ended_as(job, Status.CANCELLED))
            if job.status is not Status.INTERRUPTED:
                return record
            waited = self._waited(job, now)
            if waited > age:
                error = f"{job.error}; not retried within {age:g} s, so its text was deleted"
                return replace(record, job=self._ended_as(job, Status.FAILED, error=error), decided=True)
            # The record may say running, because a running job without heartbeats counts as interrupted. Its worker may
            # only be slow. The status in the record is not changed, because `beat` accepts the worker's next heartbeat
            # only while the record says running.
            return replace(record, job=replace(record.job, waited=waited))

        try:
            job = self._heard(self.storage.change(job_id, step).job)
        except OSError as error:  # for example, the disk is full; the next call records this waiting time too
            log.warning("job %s: %s", job_id, error)
            return
        if job.status is Status.INTERRUPTED:
            self._waiting[job_id] = job.waited, now

    def _waited(self, job: Job, now: float) -> float:
        """Seconds for which an interrupted job has waited for a retry: `waited` in its record, plus the time since this
        process wrote `waited`.

        If another process wrote `waited`, the time of the write is unknown, and no time is added.
        """
        waited, since = self._waiting.get(job.id, (-1.0, now))
        return job.waited + (now - since if waited == job.waited else 0.0)

    def interrupt(self, job_id: str, why: str | None = None, attempt: int | None = None) -> Job:
        """Marks a job as interrupted, because its worker is dead or could not continue. Keeps its text for another
        attempt.

        Raises:
            JobCancelled: another attempt has replaced this one.
        """

        def step(record: Record) -> Record:
            job = record.job
            if attempt is not None and superseded(job, attempt):
                raise JobCancelled(f"attempt {attempt} of job {job_id} has been replaced by another")
            if job.status is Status.QUEUED:  # the process died before `begin` counted its attempt
                job = replace(job, attempt=job.attempt + 1)
            return record if job.status.ended else replace(record, job=interrupted(job, why))

        return self.storage.change(self._checked(job_id), step).job

    def has_text(self, job_id: str) -> bool:
        return self.storage.has_input(self._checked(job_id))

    def texts(self, job_id: str) -> Iterator[str]:
        """The posted sentences, in order."""
        return (entry for entry in self._input(job_id) if isinstance(entry, str))

    def vectors(self, job_id: str) -> AbstractContextManager[Path | None]:
        """A file of the posted vectors, valid inside the context; None if no vectors were posted."""
        return self.storage.vectors(self._checked(job_id))

    def labels(self, job_id: str) -> list[LabelledPair]:
        """The posted labelled pairs, in order."""
        return [LabelledPair(*entry) for entry in self._input(job_id) if isinstance(entry, list)]

    def _input(self, job_id: str) -> Iterator[Any]:
        for line in self.storage.lines(self._checked(job_id)):
            yield orjson.loads(line)

    def forget(self, keep: int = KEPT) -> None:
        """Removes all ended jobs except the newest `keep`. Then calls `sweep`."""
        _, ended = self.survey()
        old = sorted(ended, key=lambda name: ended[name].created, reverse=True)[keep:]
        for job_id in old:
            self.storage.remove(job_id)
        if old:
            self.storage.free_keys()
        self.sweep()


def superseded(job: Job, attempt: int) -> bool:
    """Whether another attempt has replaced `attempt`. A replaced attempt must not change the job."""
    over = job.attempt != attempt or job.status is Status.QUEUED
    if over:
        log.warning("attempt %d of job %s was considered dead and has been replaced", attempt, job.id)
    return over


def killed(stage: str) -> str:
    """Why a job was interrupted whose process was killed."""
    return f"the job's process was killed while {stage}, perhaps because memory ran out"


def interrupted(job: Job, why: str | None = None) -> Job:
    message = f"{why or f'the worker ended while {job.stage}'}; retry with POST /calibrate/{job.id}/retry"
    return job.become(Status.INTERRUPTED, error=message)
