"""Jobs in a folder. Each job has a folder `jobs/<id>` with these files:

job.json       the record; changed only under a lock
input          posted text and labels; deleted when the job ends
vectors.npy    posted vectors; deleted when the job ends
decided        an empty file; exists if a process has decided how the job ends
claim          the job's id and the fingerprint of its content; exists only if the job has an idempotency key. The file
               `jobs/idempotency/<hash of the key>` is a hard link to `claim`.
"""

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from isosim.errors import Conflict, CorruptArtifact, NotFound
from isosim.jobs.job import Job, JobRequest, Status
from isosim.jobs.spool import Spool
from isosim.store.artifacts import (
    Garbage,
    building,
    from_facts,
    fsync,
    leftovers,
    locked,
    read_json,
    sweep,
    to_facts,
    write_json,
)

RECORD, INPUT, VECTORS, DECIDED, CLAIM, LOCK = "job.json", "input", "vectors.npy", "decided", "claim", ".lock"
JOB_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Record:
    """The stored state of a job."""

    job: Job
    decided: bool = False  # True: a process has decided how the job ends, and will record the end
    # `FolderJobs` does not use the fields below.
    publishing: int | None = None  # number of the last calibration version that an attempt was about to publish
    key: str | None = None  # hash of the job's idempotency key (`key_name`)


class JobStorage(Protocol):
    """Stores jobs. A job has a record and input. The record is replaced as a whole. The input is deleted when the job
    ends.

    Callers must check job ids, because ids become part of paths and keys. Methods raise NotFound if the job does not
    exist, CorruptArtifact if its record is invalid, and OSError if the storage cannot be reached.
    """

    # True (a folder): `change` locks the record. False (a bucket): there are no locks. A stalled attempt may still
    # publish its version after the job's next attempt has begun.
    exclusive: bool
    scratch: Path  # a local folder for input that is still arriving

    def spool(self) -> Spool:
        """A new spool for input that is still arriving."""
        ...

    def create(self, job: Job, spool: Spool, key: str | None, fingerprint: str) -> None:
        """Creates a job from the spooled input. Afterwards, the caller must call `take` to reserve the idempotency key
        `key`."""
        ...

    def names(self) -> list[str]:
        """The ids of all recorded jobs, in any order; may include invalid ids."""
        ...

    def read_each(self, names: Collection[str], read: Callable[[str], Job | None]) -> list[Job | None]:
        """Calls `read` with each id, and returns the results in order. Object storage is read in parallel."""
        ...

    def read(self, job_id: str) -> Record: ...

    def change(self, job_id: str, step: Callable[[Record], Record]) -> Record:
        """Calls `step` with a record, replaces the record if the result differs, and returns the result.

        Never overwrites a change by another process. In a folder, the record is locked. In a bucket, `step` is called
        again with the new record if another process has changed it.
        """
        ...

    def has_input(self, job_id: str) -> bool: ...

    def lines(self, job_id: str) -> Iterator[bytes]:
        """Lines of the posted text and labels, in order. `Spool` describes their format."""
        ...

    def vectors(self, job_id: str) -> AbstractContextManager[Path | None]:
        """A file of the posted vectors, valid inside the context; None if no vectors were posted."""
        ...

    def drop_input(self, job_id: str) -> None: ...

    def remove(self, job_id: str) -> None:
        """Removes a job. If the process dies meanwhile, `sweep` removes the input that is left."""
        ...

    def sweep(self) -> None:
        """Removes input that a dead process has left behind."""
        ...

    def garbage(self, age: float) -> Iterator[Garbage]:
        """Lists input that dead processes have left behind and that is older than `age` seconds."""
        ...

    def take(self, key: str, job_id: str, fingerprint: str) -> str:
        """Reserves an idempotency key for the job. Changes nothing if another job with the same content has the key.
        Returns the id of the job that has the key.

        Raises:
            Conflict: a job with other content has the key.
        """
        ...

    def taken(self, key: str) -> bool:
        """Whether a job has the key."""
        ...

    def free_keys(self, deleted: Collection[str] = ()) -> None:
        """Frees the keys of removed jobs, and of the jobs whose ids are in `deleted`."""
        ...


def parsed_record(raw: Mapping[str, Any], where: str) -> Job:
    """The job in a stored record. Raises CorruptArtifact, with `where` in its message, if the record is invalid."""
    try:
        stated = {"request": from_facts(JobRequest, raw["request"]), "status": Status(raw["status"])}
        return from_facts(Job, {**raw, **stated})
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptArtifact(f"{where} is not a valid record of a job: {error}") from error


def key_name(key: str) -> str:
    """Hash of an idempotency key. Names of files contain the hash, because a key may contain any characters."""
    return hashlib.sha256(key.encode()).hexdigest()


def used_otherwise() -> Conflict:
    return Conflict("Idempotency-Key was used for another calibration")


class FolderJobs:
    """Jobs on a disk, or on a volume that several machines mount."""

    exclusive = True

    def __init__(self, root: Path) -> None:
        self.root = self.scratch = root
        self.keys = root / "idempotency"

    def spool(self) -> Spool:
        return Spool(self.root)

    def create(self, job: Job, spool: Spool, key: str | None, fingerprint: str) -> None:
        with building(self.root) as folder:
            write_json(folder / RECORD, to_facts(job))
            spool.move_to(folder / INPUT, folder / VECTORS)
            if key is not None:
                write_json(folder / CLAIM, {"job": job.id, "fingerprint": fingerprint})
            fsync(folder)
            folder.rename(self.root / job.id)
            fsync(self.root)

    def names(self) -> list[str]:
        return [record.parent.name for record in self.root.glob(f"*/{RECORD}")]

    def read_each(self, names: Collection[str], read: Callable[[str], Job | None]) -> list[Job | None]:
        return [read(name) for name in names]

    def _folder(self, job_id: str) -> Path:
        if not (self.root / job_id / RECORD).is_file():
            raise NotFound(f"no calibration job {job_id!r}")
        return self.root / job_id

    def read(self, job_id: str) -> Record:
        folder = self._folder(job_id)
        try:
            raw = read_json(folder / RECORD)
        except FileNotFoundError:  # another process has just removed the job
            raise NotFound(f"no calibration job {job_id!r}") from None
        return Record(parsed_record(raw, str(folder / RECORD)), (folder / DECIDED).exists())

    def change(self, job_id: str, step: Callable[[Record], Record]) -> Record:
        with locked(self._folder(job_id) / LOCK):
            before = self.read(job_id)
            after = step(before)
            if after.decided and not before.decided:
                (self.root / job_id / DECIDED).touch(exist_ok=False)
            if before.decided and not after.decided:
                (self.root / job_id / DECIDED).unlink(missing_ok=True)
            if after.job != before.job:
                write_json(self.root / job_id / RECORD, to_facts(after.job))
            return after

    def has_input(self, job_id: str) -> bool:
        return (self._folder(job_id) / INPUT).exists()

    def lines(self, job_id: str) -> Iterator[bytes]:
        with (self._folder(job_id) / INPUT).open("rb") as file:
            yield from file

    @contextmanager
    def vectors(self, job_id: str) -> Iterator[Path | None]:
        path = self._folder(job_id) / VECTORS
        yield path if path.exists() else None

    def drop_input(self, job_id: str) -> None:
        for name in (VECTORS, INPUT):
            (self._folder(job_id) / name).unlink(missing_ok=True)

    def remove(self, job_id: str) -> None:
        gone = self.root / f".building-{job_id}"
        with contextlib.suppress(OSError):  # another process has removed the job, or the store is read-only
            (self.root / job_id).rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def _unfinished(self) -> list[Path]:
        return [*self.root.glob(".spool-*"), *self.root.glob(".building-*")]

    def sweep(self) -> None:
        sweep(*self._unfinished())

    def garbage(self, age: float) -> Iterator[Garbage]:
        return leftovers(self._unfinished(), age)

    def take(self, key: str, job_id: str, fingerprint: str) -> str:
        self.keys.mkdir(exist_ok=True)
        place = self.keys / key_name(key)
        with locked(self.keys / LOCK):
            self._free_if_gone(place)
            try:
                os.link(self.root / job_id / CLAIM, place)
            except FileExistsError:
                earlier = read_json(place)
                if earlier.get("fingerprint") != fingerprint:
                    raise used_otherwise() from None
                return str(earlier["job"])
        fsync(self.keys)
        return job_id

    def taken(self, key: str) -> bool:
        return (self.keys / key_name(key)).exists()

    def free_keys(self, deleted: Collection[str] = ()) -> None:
        if not self.keys.is_dir():
            return
        with locked(self.keys / LOCK):
            for key in self.keys.glob("[0-9a-f]*"):
                self._free_if_gone(key, deleted)

    def _free_if_gone(self, key: Path, deleted: Collection[str] = ()) -> None:
        """Frees a key if its job is in `deleted` or does not exist. The key of a removed job remains if the process
        died before it freed the key."""
        with contextlib.suppress(FileNotFoundError, CorruptArtifact):
            job = str(read_json(key).get("job"))
            if job in deleted or not (self.root / job / RECORD).is_file():
                key.unlink()
