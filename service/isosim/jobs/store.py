"""Jobs in the store: one record each, which is also the queue. Workers claim jobs by compare-and-swap.

    jobs/<id>.json                              the record (`Job`); it never moves
    open/<owner>/<time>-<size>-<input>-<id>     empty: the index of jobs that have not ended (`OpenJob`)
    input/<input>/lines, vectors.npy, second    what was posted; deleted when the job ends

The entry of the index is written first and deleted last, so that it leads to everything that a killed process has left.
Stale entries are removed by the next process that reads them.
"""

import hashlib
import logging
import re
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from isosim.errors import Conflict, CorruptArtifact, JobCancelled, NotFound, Unavailable
from isosim.jobs.job import Job, JobRequest, Status
from isosim.jobs.posted import LINES, SECOND, VECTORS, Spool
from isosim.store.blobs import Blobs, Changed
from isosim.store.records import Records

SILENCE = 29.0  # s without heartbeat until another worker may take a running job; workers beat every 2 or 10 s
ABANDONED = 1200.0  # s until an entry of the index without a record counts as left by a dead process
KEPT = 1000  # number of ended jobs whose records are kept
SIDE_BY_SIDE = 8  # records that are read in parallel; unmeasured

JOB_ID = re.compile(r"[0-9a-f]{32}")

log = logging.getLogger(__name__)


class OpenJob(NamedTuple):
    """An entry of the index."""

    owner: str  # `owner_name` of the API key's id
    time: str  # when the job was created, by the clock of the process that created it
    size: int  # bytes of its input
    input: str
    id: str

    @classmethod
    def of(cls, job: Job) -> "OpenJob":
        return cls(owner_name(job.owner), re.sub(r"\D", "", job.created)[:20], job.size, job.input, job.id)

    @property
    def key(self) -> str:
        return f"open/{self.owner}/{self.time}-{self.size}-{self.input}-{self.id}"

    @property
    def files(self) -> list[str]:
        return [f"input/{self.input}/{name}" for name in (LINES, VECTORS, SECOND)]


class Found(NamedTuple):
    """A job as it was read, and its record's tag."""

    job: Job
    tag: str


Unread = CorruptArtifact | OSError | None  # why a record was not read; None: there is none


def owner_name(owner: str) -> str:
    """The id of an API key as a part of keys in the store, which may not contain all characters."""
    return hashlib.sha256(owner.encode()).hexdigest()[:16]


def id_of(owner: str, idempotency_key: str, epoch: int) -> str:
    """Id of the job with an idempotency key. Each API key has idempotency keys of its own. `epoch` of the domain: after
    a deletion of the domain, the same request makes another job."""
    return hashlib.sha256(orjson.dumps([owner, idempotency_key, epoch])).hexdigest()[:32]


def posted(request: JobRequest) -> dict[str, Any]:
    """The fields of a request that the client posted. Requests with the same idempotency key are compared by these
    fields. The server's own fields may change before the client repeats the request."""
    facts = asdict(request)
    facts.pop("epoch")
    if request.base is not None and request.match is None:
        for name in ("base", "champion", "method"):
            del facts[name]
    return facts


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


class JobStore:
    """Jobs of a folder or a bucket. Thread-safe, except that `claim` and `sweep` are for one thread."""

    def __init__(self, blobs: Blobs, clock: Callable[[], float] = time.monotonic) -> None:
        self.blobs, self.clock = blobs, clock
        self.records = Records(blobs, Job, "jobs/")
        self._ended: dict[tuple[str, str], Job] = {}  # ended jobs without reports, by id and stamp of the record
        self._seen: dict[tuple[str, str], float] = {}  # by id and stamp of the record: when `newest` first saw it
        self.silent: frozenset[str] = frozenset()  # held jobs, at the last `newest`, without heartbeat for SILENCE
        self._unreadable: set[str] = set()  # jobs whose records could not be read at the last look
        self._held: dict[str, tuple[str, float]] = {}  # held jobs: id -> record's tag, when it was first seen
        self._strays: dict[str, float] = {}  # entries of the index without a record: key -> when first seen
        self._begun: set[tuple[str, int]] = set()  # held jobs that were seen: (id, attempt)
        self._turns: dict[str, int] = {}  # by owner: a number that is higher if a job of the owner began later
        self._numbers = count()

    @property
    def distant(self) -> bool:
        """Whether each access is a request over the network, which costs time and money."""
        return "://" in self.blobs.address

    def create(
        self,
        request: JobRequest,
        spool: Spool,
        notices: list[str],
        idempotency_key: str | None = None,
        owner: str = "",
        admit: Callable[[list[OpenJob]], object] = lambda _: None,
    ) -> Job:
        """Creates a job from the spooled input, or returns the one with the same idempotency key and content. A new
        job's `input` is the spool's id.

        `admit` is called with the jobs that have not ended, and those that other processes began to create before; it
        raises an error to refuse this one.

        Raises:
            Conflict: the idempotency key was used with other content.
            Unavailable: the upload of the input took too long.
        """
        fingerprint, name = None, uuid.uuid4().hex
        if idempotency_key is not None:
            fingerprint = hashlib.sha256(orjson.dumps(posted(request)) + spool.digest()).hexdigest()
            name = id_of(owner, idempotency_key, request.epoch)
            with suppress(FileNotFoundError):
                return same(self.records.read(name), fingerprint)
        job = Job(
            name, request, created=now(), notices=notices, owner=owner, size=spool.size,
            input=spool.id, fingerprint=fingerprint,
        )  # fmt: skip
        entry, began = OpenJob.of(job), self.clock()
        self.blobs.write(entry.key, b"")
        try:
            admit([one for one in self.index() if (one.time, one.id) < (entry.time, entry.id)])
            for file, path in spool.files():
                self.blobs.upload(f"input/{job.input}/{file}", path)
            if self.clock() - began > ABANDONED / 2:  # another process may soon take the entry for abandoned
                raise Unavailable("writing the posted text into the store took too long; post it again")
        except BaseException:
            with suppress(OSError):
                self._drop(entry)
            raise
        there = self.records.create(name, job)
        if there.input == job.input:
            return there
        self._drop(entry)  # another request with the same idempotency key was faster
        return same(there, fingerprint)

    def has(self, job_id: str) -> bool:
        with suppress(FileNotFoundError):
            return bool(self.blobs.stamp(self.records.key(job_id)))
        return False

    def remove(self, job: Job) -> None:
        """Removes the record of an ended job: a request that repeats its idempotency key makes another one."""
        self.blobs.delete([self.records.key(job.id)])

    def read(self, job_id: str) -> Job:
        """Raises NotFound, or CorruptArtifact if the record cannot be understood."""
        return self._found(job_id).job

    def _found(self, job_id: str) -> Found:
        if not JOB_ID.fullmatch(job_id):  # ids become part of keys
            raise missing(job_id)
        try:
            return Found(*self.records.tagged(job_id))
        except FileNotFoundError:
            raise missing(job_id) from None

    def _change(self, job_id: str, step: Callable[[Job], Job]) -> Job:
        def there(job: Job | None) -> Job:
            if job is None:
                raise missing(job_id)
            return step(job)

        return self.records.change(job_id, there)

    def cancel(self, job_id: str) -> Job:
        """Raises NotFound, or Conflict if the job has ended or is publishing."""
        self.read(job_id)
        job = self._change(job_id, lambda job: job.cancelled(now()))
        self._close(job)
        return job

    def _close(self, job: Job) -> None:
        """Deletes what an ended job has left beside its record. The next process that reads the index does it if this
        one cannot."""
        try:
            self._drop(OpenJob.of(job))
        except OSError as error:
            log.warning("the text of job %s is not deleted yet: %s", job.id, error)

    def _drop(self, entry: OpenJob) -> None:
        self.blobs.delete(entry.files)
        self.blobs.delete([entry.key])

    @contextmanager
    def posted(self, job: Job) -> Iterator[Path]:
        """A folder with what was posted for a job, until the context ends. Raises Unavailable if it is gone."""
        place = f"input/{job.input}/"
        names = [entry.key.removeprefix(place) for entry in self.blobs.list(place)]
        if LINES not in names:
            raise Unavailable("the posted text is gone; post it again")
        with self.blobs.files(place, names) as folder:
            yield folder

    # The index and the queue

    def index(self) -> list[OpenJob]:
        """All entries, those of the same owner in the order of their creation."""
        entries = []
        for entry in self.blobs.list("open/"):
            owner, _, name = entry.key.removeprefix("open/").partition("/")
            with suppress(ValueError):  # another file
                created, size, place, job = name.split("-")
                entries.append(OpenJob(owner, created, int(size), place, job))
        return entries

    def unended(self) -> list[Job]:
        """All jobs that have not ended, newest first, except those whose record is damaged. Raises OSError if a record
        cannot be read."""
        jobs = []
        for _, found in self._look():
            if isinstance(found, OSError):
                raise found
            if isinstance(found, Found) and not found.job.status.ended:
                jobs.append(found.job)
        return sorted(jobs, key=lambda job: job.created, reverse=True)

    def _look(self) -> list[tuple[OpenJob, Found | Unread]]:
        """The entries of the index with the records to which they lead. Of two requests with one idempotency key, only
        one has the record."""
        entries = self.index()
        found = zip(entries, self._read_each([entry.id for entry in entries]), strict=True)
        return [(own, None if isinstance(one, Found) and one.job.input != own.input else one) for own, one in found]

    def _read_each(self, names: Collection[str]) -> list[Found | Unread]:
        def read(name: str) -> Found | Unread:
            try:
                found = self._found(name)
            except NotFound:  # another process has just removed the job
                return None
            except (CorruptArtifact, OSError) as error:
                self._ignored(name, error)
                return error
            self._unreadable.discard(name)
            return found

        if not self.distant:
            return list(map(read, names))
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            return list(pool.map(read, names))

    def _ignored(self, name: str, error: Exception) -> None:
        if name not in self._unreadable:  # workers look once a second
            log.warning("job %s is ignored, because it cannot be read: %s", name, error)
        self._unreadable.add(name)

    def _swept(self) -> list[Found]:
        """Jobs that have not ended, after removing stale entries of the index, and jobs whose record has been damaged
        for long."""
        before, strays, unended = self.clock(), dict[str, float](), []
        for entry, found in self._look():
            since = self._strays.get(entry.key, self.clock())
            if isinstance(found, Found) and found.job.status.ended:
                self._close(found.job)
            elif isinstance(found, Found):
                unended.append(found)
            elif isinstance(found, OSError):
                continue
            elif before - since <= ABANDONED:
                strays[entry.key] = since
            else:
                if isinstance(found, CorruptArtifact):
                    self.blobs.delete([self.records.key(entry.id)])
                self._drop(entry)
        self._strays = strays
        return unended

    def claimable(self, worker: str) -> list[Found]:
        """Jobs that no worker holds, and those whose worker has been silent for SILENCE by this process's clock. The
        owners take turns: first comes the job of the owner whose last job began the longest ago.

        Before all others come those that `worker`, which asks, holds: it does not know, because an answer was lost.
        """
        before = self.clock()
        found = self._swept()
        after = self.clock()
        held, ready = {}, defaultdict(list)
        for one in found:
            job = one.job
            if job.worker is not None and job.worker != worker:
                tag, since = self._held.get(job.id, ("", after))
                held[job.id] = (one.tag, since if tag == one.tag else after)
                if (job.id, job.attempt) not in self._begun:
                    self._turns[job.owner] = next(self._numbers)
                # `after` of an earlier look to `before` of this one: a process that was stopped in between sees less.
                if before - held[job.id][1] <= SILENCE:
                    continue
            ready[job.owner].append(one)
        self._held = held
        self._begun = {(one.job.id, one.job.attempt) for one in found if one.job.worker is not None}
        for owned in ready.values():
            owned.sort(key=lambda one: one.job.created)
        turns = [
            (place, self._turns.get(owner, -1), one)
            for owner, owned in ready.items()
            for place, one in enumerate(owned)
        ]
        turns.sort(key=lambda turn: (turn[2].job.worker != worker, *turn[:2], turn[2].job.created))
        return [one for *_, one in turns]

    def claim(
        self,
        worker: str,
        champion: Callable[[JobRequest], int | None] = lambda _: None,
        published: Callable[[Job], dict[str, Any] | None] = lambda _: None,
        only: str | None = None,
        given_up: Callable[[Job], None] = lambda _: None,
    ) -> "Attempt | None":
        """Begins the next attempt of a job, or goes on with the one that the worker holds; None if there is none.

        Args:
            worker: name of the calling process, which no other process has had.
            champion: gives the current champion of a request's domain.
            published: gives the facts of the outcome if an earlier attempt of the job has published its version. Such
                a job ends as succeeded, without another attempt. If it raises OSError, the job waits.
            only: the id of the one job that may be claimed; None: any.
            given_up: called with each job that has failed because its last attempt did not end.
        """
        for found in self.claimable(worker):
            job = found.job
            if only not in (None, job.id):
                continue
            try:
                facts = published(job) if job.status is Status.PUBLISHING else None
            except OSError as error:
                self._ignored(job.id, error)
                continue
            with suppress(Changed):  # another worker was faster, or the silent one has reported again
                if facts is not None:
                    self._end(job.ended(Status.SUCCEEDED, now(), **facts), found.tag)
                elif job.worker == worker:
                    return Attempt(self, found)
                elif job.exhausted:
                    self._end(job.given_up(now()), found.tag)
                    given_up(job)
                else:
                    begun = job.begun(worker, now(), champion(job.request))
                    attempt = Attempt(self, Found(begun, self.records.replace(job.id, begun, found.tag)))
                    self._turns[job.owner] = next(self._numbers)
                    self._begun.add((begun.id, begun.attempt))
                    return attempt
        return None

    def _end(self, job: Job, tag: str) -> None:
        self.records.replace(job.id, job, tag)
        log.log(logging.ERROR if job.status is Status.FAILED else logging.INFO, "job %s %s", job.id, job.status)
        self._close(job)

    # Listings

    def rested_on(self) -> defaultdict[str, set[int]]:
        """The versions that unended jobs need, by domain: `base` and `champion` of each job's request (see
        `JobRequest`)."""
        versions: defaultdict[str, set[int]] = defaultdict(set)
        for job in self.unended():
            named = (job.request.base, job.request.champion)
            versions[job.request.domain] |= {version for version in named if version is not None}
        return versions

    def newest(self) -> list[Job]:
        """All jobs, newest first, without reports, except those whose record is damaged or cannot be read.

        Each process reads the record of an ended job only once, unless it changes: a removed job may come back, made
        again with the same idempotency key.
        """
        before = self.clock()
        stamps = {name: stamp for name, stamp in self.records.stamps() if JOB_ID.fullmatch(name)}
        after = self.clock()
        self._seen = seen = {one: self._seen.get(one, after) for one in stamps.items()}
        ended = {one: job for one in stamps.items() if (job := self._ended.get(one)) is not None}
        unended = []
        for found in self._read_each([name for name, stamp in stamps.items() if (name, stamp) not in ended]):
            if isinstance(found, Found) and found.job.status.ended:
                ended[found.job.id, stamps[found.job.id]] = replace(found.job, report=None)
            elif isinstance(found, Found):
                unended.append(found.job)
        self._ended = ended
        held = [job.id for job in unended if job.worker is not None]
        self.silent = frozenset(job for job in held if before - seen[job, stamps[job]] > SILENCE)
        return sorted([*unended, *ended.values()], key=lambda job: job.created, reverse=True)

    def sweep(self, keep: int = KEPT) -> None:
        """Removes ended jobs except the newest `keep`, and stale entries of the index; adds entries that are missing
        there."""
        self._swept()
        jobs = self.newest()
        entries = self.index()  # after the records: an old job may have come back meanwhile
        indexed = {entry.id for entry in entries}
        keys = {entry.key for entry in entries}  # a post that was killed may have left another entry of the same id
        for job in jobs:
            if not job.status.ended and OpenJob.of(job).key not in keys:
                self.blobs.write(OpenJob.of(job).key, b"")
        old = [job for job in jobs if job.status.ended][keep:]
        self.blobs.delete([self.records.key(job.id) for job in old if job.id not in indexed])


class Attempt:
    """A worker's attempt at a job, which holds it. Each write raises JobCancelled if the job was cancelled or another
    attempt has begun; after an OSError it is unknown whether it was written, and the next write finds out."""

    def __init__(self, jobs: JobStore, found: Found) -> None:
        self.jobs = jobs
        self.job, self._tag = found

    def _write(self, step: Callable[[Job], Job]) -> Job:
        """Writes over the tag of this attempt's last write, without reading the record."""
        while True:
            after = step(self.job)
            try:
                self._tag = self.jobs.records.replace(after.id, after, self._tag)
            except Changed:  # the job was cancelled, removed or taken, or the answer to an earlier write was lost
                try:
                    there, tag = self.jobs._found(after.id)
                except NotFound:
                    raise JobCancelled(f"job {after.id} was removed") from None
                self.job, self._tag = there.check_held(self.job), tag
            else:
                self.job = after
                return after

    def beat(self, stage: str, progress: float) -> None:
        self._write(lambda job: replace(job, stage=stage, progress=progress))

    def publish(self) -> None:
        """To be called before the domain is written; from then on the job cannot be cancelled."""
        self._write(lambda job: replace(job, status=Status.PUBLISHING))

    def give_back(self, why: str, *, counts: bool = True) -> None:
        """Lets another attempt begin at once. `counts`: whether this one counts as one of ATTEMPTS."""
        self._write(lambda job: job.given_back(why, counts=counts))

    def end(self, status: Status, **facts: Any) -> Job:
        job = self._write(lambda job: job.ended(status, now(), **facts))
        self.jobs._close(job)
        return job


def same(job: Job, fingerprint: str | None) -> Job:
    """A job that was posted before. Raises Conflict if its content was another."""
    if job.fingerprint != fingerprint:
        raise Conflict("Idempotency-Key was used for another calibration or match")
    return job


def missing(job_id: str) -> NotFound:
    return NotFound(f"no calibration job {job_id[:64]!r}")
