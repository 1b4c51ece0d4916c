"""Jobs in the model store: `jobs/<id>/job.json`; until a job ends `input`, and `vectors.npy` where some were posted."""

import contextlib
import hashlib
import logging
import os
import re
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from service.adapters.jobs.spool import Spool
from service.adapters.storage.artifacts import (
    building,
    from_facts,
    fsync,
    locked,
    read_json,
    sweep,
    to_facts,
    write_json,
)
from service.core.errors import Conflict, CorruptArtifact, JobCancelled, NotFound
from service.core.jobs.job import Job, JobRequest, LabelledPair, Status

RECORD, INPUT, VECTORS, DECIDED = "job.json", "input", "vectors.npy", "decided"
SILENCE = 30.0  # s without a new heartbeat before a running job counts as interrupted; workers beat every 2 s
JOB_ID = re.compile(r"[0-9a-f]{32}")


log = logging.getLogger(__name__)


def posted(request: JobRequest) -> dict[str, Any]:
    """The request without what was looked up for it: the same labels posted again are the same request."""
    facts = to_facts(request)
    facts.pop("generation", None)  # looked up, too
    if request.base is not None:
        for name in ("base", "champion", "method", "normalization"):
            del facts[name]
    return facts


def now() -> str:
    return datetime.now(UTC).isoformat()


class JobStore:
    """How a job ends is decided once, by the first to create the file `decided`: the worker that is about to publish,
    the worker that failed, or the API for a caller who cancels. The losers stop.

    Whether a worker still beats is judged by this process's own clock, from one look to a later one: the clocks of
    two machines differ, and each may jump."""

    def __init__(self, root: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.root, self.clock = root / "jobs", clock
        self.idempotency_keys = IdempotencyKeys(self.root, RECORD)
        self._seen: dict[str, tuple[float, float]] = {}  # of running jobs: the last heartbeat, and when it was new
        self._waiting: dict[str, tuple[float, float]] = {}  # of interrupted jobs: `waited` at the last look, and when

    def folder(self, job_id: str) -> Path:
        if not JOB_ID.fullmatch(job_id) or not (self.root / job_id / RECORD).is_file():
            raise NotFound(f"no calibration job {job_id[:64]!r}")
        return self.root / job_id

    def _locked(self, job_id: str) -> AbstractContextManager[None]:
        """Locks the job, so that one process at a time reads its record and changes it."""
        return locked(self.folder(job_id) / ".lock")

    def spool(self) -> Spool:
        """A file outside any job for text that is still arriving."""
        return Spool(self.root)

    def create(
        self,
        request: JobRequest,
        spool: Spool,
        notices: list[str],
        idempotency_key: str | None,
        traceparent: str | None = None,
    ) -> Job:
        """Makes the spooled text a queued job, which has the spool's id; the same key and the same content give the
        job made before.

        Raises:
            Conflict: the key was used for something else.
        """
        job = Job(spool.id, request, created=now(), heartbeat=time.time(), notices=notices, traceparent=traceparent)
        fingerprint = hashlib.sha256(orjson.dumps(posted(request)) + spool.digest()).hexdigest()
        with building(self.root) as folder:
            write_json(folder / RECORD, to_facts(job))
            spool.move_to(folder / INPUT, folder / VECTORS)
            if idempotency_key is not None:
                self.idempotency_keys.write(folder, job.id, fingerprint)
            self._publish(folder, job.id)
        if idempotency_key is None:
            return job
        holder = ""
        try:
            while (holder := self.idempotency_keys.take(idempotency_key, job.id, fingerprint)) != job.id:
                with contextlib.suppress(NotFound):  # forgotten at this moment: the key is free now
                    return self.read(holder)
            return job
        finally:
            if holder != job.id:  # another job has the key, or nothing could be written
                self._remove(job.id)

    def _publish(self, folder: Path, job_id: str) -> None:
        fsync(folder)
        folder.rename(self.root / job_id)
        fsync(self.root)

    def read(self, job_id: str) -> Job:
        """The record as it stands; a running job whose worker fell silent reads `interrupted`."""
        job = self._record(job_id)
        return interrupted(job) if self._silent(job) else job

    def _record(self, job_id: str) -> Job:
        raw = read_json(self.folder(job_id) / RECORD)
        try:
            stated = {"request": from_facts(JobRequest, raw["request"]), "status": Status(raw["status"])}
            return from_facts(Job, raw | stated)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptArtifact(f"{self.root / job_id / RECORD} is not understood: {error}") from error

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
        """Whether an attempt is running and is heard of within so many seconds; waits for it."""
        before, deadline = self._record(job_id), time.monotonic() + seconds
        while (before.status, before.attempt) == (Status.RUNNING, attempt) and time.monotonic() < deadline:
            time.sleep(0.1)
            now = self._record(job_id)
            if now.heartbeat != before.heartbeat or now.status.ended:
                return True
        return False

    def rested_on(self) -> defaultdict[str, set[int]]:
        """Domain by domain, the versions that jobs which have not ended name."""
        versions: defaultdict[str, set[int]] = defaultdict(set)
        for job in self.all():
            if not job.status.ended:
                named = (job.request.base, job.request.champion)
                versions[job.request.domain] |= {version for version in named if version is not None}
        return versions

    def names(self) -> list[str]:
        """The ids of the jobs on record, in no order."""
        return [record.parent.name for record in self.root.glob(f"*/{RECORD}") if JOB_ID.fullmatch(record.parent.name)]

    def all(self) -> list[Job]:
        """Newest first."""
        jobs = []
        for name in self.names():
            try:
                jobs.append(self.read(name))
            except (NotFound, FileNotFoundError):
                continue  # forgotten meanwhile
            except CorruptArtifact as error:
                log.warning("job %s is passed over: %s", name, error)
        return sorted(jobs, key=lambda job: job.created, reverse=True)

    def counts(self) -> Counter[Status]:
        return Counter(job.status for job in self.all())

    def write(self, job: Job) -> Job:
        write_json(self.folder(job.id) / RECORD, to_facts(job))
        return job

    def begin(
        self, job_id: str, handed: int | None = None, dead: int | None = None, champion: int | None = None
    ) -> Job:
        """A worker takes the job, which becomes its next attempt.

        Args:
            handed: how many attempts had begun when the job was handed over; with more of them the worker is late.
            dead: an attempt whose process has died, if the queue hands the job over again for that reason.
            champion: of the job's domain, now. The first attempt notes it; later ones replace no newer champion.

        Raises:
            JobCancelled: it has ended.
            Conflict: another worker is at it, or a later hand-over takes its turn.
        """
        with self._locked(job_id):
            job = self.read(job_id)
            if job.status.ended:
                raise JobCancelled(f"job {job_id} is {job.status}")
            if job.attempt == dead and job.status in (Status.RUNNING, Status.INTERRUPTED):
                (self.folder(job_id) / DECIDED).unlink(missing_ok=True)  # it died while ending
            elif job.status is Status.RUNNING:
                raise Conflict(f"job {job_id} is running elsewhere")
            elif handed is not None and job.attempt != handed:
                raise Conflict(f"job {job_id} was handed over again after attempt {job.attempt}")
            if self.decided(job_id):
                raise JobCancelled(f"job {job_id} is being cancelled")
            if job.attempt == 0 and job.request.base is None:  # labels are for the champion of when they were posted
                job = replace(job, request=replace(job.request, champion=champion))
            attempt = job.attempt + 1
            started = job.become(Status.RUNNING, stage="starting", progress=0.0, attempt=attempt, started=now())
            return self.write(replace(started, heartbeat=time.time(), error=None, waited=0.0))

    def beat(self, job: Job) -> bool:
        """Records how far an attempt is; False where another attempt has taken over, or the job's end is decided."""
        with self._locked(job.id):
            record = self._record(job.id)
            if record.attempt != job.attempt or record.status is not Status.RUNNING or self.decided(job.id):
                return False
            self.write(job)
            return True

    def decide(self, job_id: str, attempt: int | None = None) -> bool:
        """True for the first to decide how the job ends; an attempt does so as long as no other has taken its place."""
        with self._locked(job_id):
            if attempt is not None and self._superseded(job_id, attempt):
                return False
            return self._decide(job_id)

    def check_turn(self, job: Job) -> None:
        """Raises JobCancelled where another attempt has taken this one's place."""
        with self._locked(job.id):
            if self._superseded(job.id, job.attempt):
                raise JobCancelled(f"attempt {job.attempt} of job {job.id} is over")

    def _decide(self, job_id: str) -> bool:
        try:
            (self.folder(job_id) / DECIDED).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _superseded(self, job_id: str, attempt: int) -> bool:
        """Whether the job was queued again while this attempt was taken for dead; it may no longer touch it."""
        record = self._record(job_id)
        over = record.attempt != attempt or record.status is Status.QUEUED
        if over:
            log.warning("attempt %d of job %s was taken for dead and is over", attempt, job_id)
        return over

    def decided(self, job_id: str) -> bool:
        return (self.folder(job_id) / DECIDED).exists()

    def end(self, job: Job, status: Status, **facts: Any) -> Job:
        """Records the end; the caller has won `decide`. The posted text is deleted before the record says so.

        Raises:
            JobCancelled: another attempt has taken this one's place.
        """
        with self._locked(job.id):
            if job.status is Status.RUNNING and self._superseded(job.id, job.attempt):
                raise JobCancelled(f"attempt {job.attempt} of job {job.id} is over")
            return self._end(job, status, **facts)

    def _end(self, job: Job, status: Status, **facts: Any) -> Job:
        progress = 1.0 if status is Status.SUCCEEDED else job.progress
        for name in (VECTORS, INPUT):
            (self.folder(job.id) / name).unlink(missing_ok=True)
        return self.write(job.become(status, stage=status.value, progress=progress, finished=now(), **facts))

    def cancel(self, job_id: str) -> Job:
        """Records a cancel that was decided; a job that has ended stays as it is."""
        with self._locked(job_id):
            job = self.read(job_id)
            return job if job.status.ended else self._end(job, Status.CANCELLED)

    def requeue(self, job_id: str) -> Job:
        """An interrupted job becomes queued again; one that is queued stays so, for a queue that lost it.

        Raises:
            Conflict: it runs or has ended.
        """
        with self._locked(job_id):
            job = self.read(job_id)
            if job.status is Status.QUEUED:
                return job
            if job.status is not Status.INTERRUPTED:
                raise Conflict(f"job {job_id} is {job.status}; only an interrupted job can be retried")
            (self.folder(job_id) / DECIDED).unlink(missing_ok=True)  # of an attempt that died while ending
            waiting = job.become(Status.QUEUED, stage="queued", progress=0.0, error=None, waited=0.0)
            return self.write(waiting)

    def discard(self, job_id: str) -> bool:
        """Forgets a job that could not be handed over, and its idempotency key; False where it has begun."""
        with self._locked(job_id):
            if self._record(job_id).attempt:
                return False
            self._remove(job_id)
        self.idempotency_keys.drop()
        return True

    def _remove(self, job_id: str) -> None:
        """Whole, also where the process dies meanwhile: then the rest, posted text perhaps, is swept away."""
        gone = self.root / f".building-{job_id}"
        with contextlib.suppress(OSError):  # another process was faster, or the store is read-only
            (self.root / job_id).rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def sweep(self) -> None:
        """Removes what a process that died has left half-made, posted text among it."""
        sweep(*self.root.glob(".spool-*"), *self.root.glob(".building-*"))

    def expire(self, age: float) -> None:
        """Ends interrupted jobs that were not retried for `age` seconds, and those whose canceller died or could not
        write: their text is deleted. Sweeps, too.

        The seconds are counted by the processes that look, each from one look to its next, and added up in the
        record: no machine's clock is compared with another's, and a restart loses only the time in which none looked.
        """
        for job in self.all():
            if job.status in (Status.QUEUED, Status.INTERRUPTED):
                with contextlib.suppress(NotFound), self._locked(job.id):
                    self._expire(self.read(job.id), age)
            if job.status is not Status.INTERRUPTED:
                self._waiting.pop(job.id, None)
        self.sweep()

    def _expire(self, job: Job, age: float) -> None:
        if job.status is Status.QUEUED and self.decided(job.id):
            self._end(job, Status.CANCELLED)  # no worker begins it; a canceller who is still at it finds it done
        elif job.status is Status.INTERRUPTED and self._waited(job) > age:
            self._decide(job.id)
            self._end(job, Status.FAILED, error=f"{job.error}; it was not for {age:g} s: its text is deleted")

    def _waited(self, job: Job) -> float:
        """Seconds for which an interrupted job has been seen waiting for a retry.

        This process adds the time since its last look only if no other process has added any meanwhile.
        """
        now = self.clock()
        waited, since = self._waiting.get(job.id, (-1.0, now))
        if waited != job.waited or now <= since:
            self._waiting[job.id] = job.waited, now
            return job.waited
        waited += now - since
        with contextlib.suppress(OSError):  # a full disk: the next look counts from where this one did
            self.write(replace(self._record(job.id), waited=waited))  # its status stays: a silent worker may come back
            self._waiting[job.id] = waited, now
        return waited

    def interrupt(self, job_id: str, why: str | None = None, attempt: int | None = None) -> Job:
        """Marks a job whose worker is known to be dead, or could not go on. Its text stays, for another attempt.

        Raises:
            JobCancelled: another attempt has taken this one's place.
        """
        with self._locked(job_id):
            if attempt is not None and self._superseded(job_id, attempt):
                raise JobCancelled(f"attempt {attempt} of job {job_id} is over")
            job = self._record(job_id)
            if job.status is Status.QUEUED:  # its process died before it could begin: that was an attempt, too
                job = replace(job, attempt=job.attempt + 1)
            return job if job.status.ended else self.write(interrupted(job, why))

    def has_text(self, job_id: str) -> bool:
        return (self.folder(job_id) / INPUT).exists()

    def texts(self, job_id: str) -> Iterator[str]:
        """The posted sentences, in order."""
        return (entry for entry in self._input(job_id) if isinstance(entry, str))

    def vectors(self, job_id: str) -> Path | None:
        """The file of posted vectors; None where text was posted."""
        path = self.folder(job_id) / VECTORS
        return path if path.exists() else None

    def labels(self, job_id: str) -> list[LabelledPair]:
        """The posted labelled pairs, in order."""
        return [LabelledPair(*entry) for entry in self._input(job_id) if isinstance(entry, list)]

    def _input(self, job_id: str) -> Iterator[Any]:
        with (self.folder(job_id) / INPUT).open("rb") as file:
            for line in file:
                yield orjson.loads(line)

    def forget(self, keep: int) -> None:
        """Removes the records of all but the newest `keep` ended jobs, and what dead processes left behind."""
        old = [job.id for job in self.all() if job.status.ended][keep:]
        for job_id in old:
            self._remove(job_id)
        if old:
            self.idempotency_keys.drop()
        self.sweep()


def interrupted(job: Job, why: str | None = None) -> Job:
    message = f"{why or f'the worker ended while {job.stage}'}; retry with POST /calibrate/{job.id}/retry"
    return job.become(Status.INTERRUPTED, error=message)


CLAIM, LOCK = "claim", ".lock"


class IdempotencyKeys:
    """Of all jobs below `root`; `record` is the file that each of them has."""

    def __init__(self, root: Path, record: str) -> None:
        self.root, self.record, self.keys = root, record, root / "idempotency"

    def write(self, folder: Path, job_id: str, fingerprint: str) -> None:
        """Writes the claim into a job that is being built; `take` makes it visible to others."""
        write_json(folder / CLAIM, {"job": job_id, "fingerprint": fingerprint})

    def take(self, key: str, job_id: str, fingerprint: str) -> str:
        """The id of the job that has the key: this one, or the one with the same content that was faster.

        Raises:
            Conflict: the key was used for something else.
        """
        self.keys.mkdir(exist_ok=True)
        place = self._place(key)
        with locked(self.keys / LOCK):
            self._free_if_gone(place)
            try:
                os.link(self.root / job_id / CLAIM, place)
            except FileExistsError:
                earlier = read_json(place)
                if earlier.get("fingerprint") != fingerprint:
                    raise Conflict("Idempotency-Key was used for another calibration") from None
                return str(earlier["job"])
        fsync(self.keys)
        return job_id

    def taken(self, key: str) -> bool:
        """Whether a job has the key."""
        return self._place(key).exists()

    def _place(self, key: str) -> Path:
        return self.keys / hashlib.sha256(key.encode()).hexdigest()

    def drop(self, deleted: Collection[str] = ()) -> None:
        """Frees the keys of jobs that are gone, and of those whose domain was deleted."""
        if not self.keys.is_dir():
            return
        with locked(self.keys / LOCK):
            for key in self.keys.glob("[0-9a-f]*"):
                self._free_if_gone(key, deleted)

    def _free_if_gone(self, key: Path, deleted: Collection[str] = ()) -> None:
        """A key comes after its job and goes after it: one without a job was left by a process that died between."""
        with contextlib.suppress(FileNotFoundError, CorruptArtifact):
            job = str(read_json(key).get("job"))
            if job in deleted or not (self.root / job / self.record).is_file():
                key.unlink()
