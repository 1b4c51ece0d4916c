"""Jobs in object storage, which has no locks. A record is replaced only if no other process has changed it since it was
read (`If-Match`).

jobs/records/<id>          the record; written after the input. Input without a record is garbage.
jobs/input/<id>/<part>     posted text and labels, in parts of 8 MB
jobs/input/<id>/vectors    posted vectors, a `.npy`
jobs/keys/<hash>           an idempotency key: id of the job that has the key, and fingerprint of the job's content
"""

import contextlib
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from io import BytesIO
from itertools import groupby
from pathlib import Path
from typing import BinaryIO

from isosim.errors import CorruptArtifact, NotFound
from isosim.jobs.folders import Record, key_name, parsed_record, used_otherwise
from isosim.jobs.job import Job
from isosim.jobs.spool import Spool
from isosim.store.artifacts import Garbage, claim, json_bytes, parsed, sweep, to_facts
from isosim.store.object_storage import Entry, ObjectStorage, PreconditionFailed

RECORDS, INPUTS, KEYS, VECTORS = "jobs/records/", "jobs/input/", "jobs/keys/", "vectors"
PART = 8_000_000  # bytes of text in one object, which is held in memory as a whole; chosen without measuring
# Maximum attempts to change an object. An attempt fails if another process changes the object at the same time.
ATTEMPTS = 50
ABANDONED = 3600.0  # seconds; input without a record is abandoned if nothing was added to it for this long
SIDE_BY_SIDE = 8  # number of records that are read in parallel


class Parts(BytesIO):
    """Writes text into a bucket part by part, and holds at most one part in memory."""

    def __init__(self, storage: ObjectStorage, prefix: str) -> None:
        super().__init__()
        self.storage, self.prefix, self.count = storage, prefix, 0

    def write(self, content: bytes, /) -> int:  # type: ignore[override]
        written = super().write(content)
        if self.tell() >= PART:
            self.put()
        return written

    def put(self) -> None:
        self.storage.write(f"{self.prefix}{self.count:06d}", self.getvalue())
        self.count += 1
        self.seek(0)
        self.truncate()


class BucketSpool(Spool):
    """Writes text into the bucket as it arrives. Writes vectors into a local file first, because the file's header
    contains the number of vectors, which is known only at the end."""

    def __init__(self, storage: ObjectStorage, scratch: Path) -> None:
        self.storage, self.kept = storage, False
        super().__init__(scratch)

    def _opened(self) -> BinaryIO:
        self.parts = Parts(self.storage, f"{INPUTS}{self.id}/")
        return self.parts

    def keep(self) -> None:
        """Writes the vectors and the last part of the text into the bucket. `close` then does not delete the input."""
        if self._vectors is not None:
            self._vectors.flush()
            self.storage.upload(f"{INPUTS}{self.id}/{VECTORS}", self.vectors)
        self.parts.put()
        self.kept = True

    def close(self) -> None:
        try:
            super().close()
        finally:
            if not self.kept:
                drop_input(self.storage, self.id)


def drop_input(storage: ObjectStorage, job_id: str) -> None:
    storage.delete([entry.key for entry in storage.list(f"{INPUTS}{job_id}/")])


class BucketJobs:
    """Jobs in a bucket. Workers and API processes may run on different machines."""

    exclusive = False

    def __init__(self, storage: ObjectStorage, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.storage, self.now, self.scratch = storage, now, Path(tempfile.gettempdir())

    def spool(self) -> BucketSpool:
        return BucketSpool(self.storage, self.scratch)

    def create(self, job: Job, spool: Spool, key: str | None, fingerprint: str) -> None:
        assert isinstance(spool, BucketSpool)  # noqa: S101 - made by `spool`
        spool.keep()
        record = Record(job, key=None if key is None else key_name(key))
        self.storage.write(RECORDS + job.id, content_of(record), new=True)

    def names(self) -> list[str]:
        return [entry.key.removeprefix(RECORDS) for entry in self.storage.list(RECORDS)]

    def read_each(self, names: Collection[str], read: Callable[[str], Job | None]) -> list[Job | None]:
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            return list(pool.map(read, names))

    def read(self, job_id: str) -> Record:
        return self._read(job_id)[0]

    def _read(self, job_id: str) -> tuple[Record, str]:
        try:
            content, tag = self.storage.read(RECORDS + job_id)
        except FileNotFoundError:
            raise NotFound(f"no calibration job {job_id!r}") from None
        where = f"{self.storage.address}/{RECORDS}{job_id}"
        raw = parsed(content, where)
        return Record(parsed_record(raw, where), bool(raw.get("decided")), raw.get("publishing"), raw.get("key")), tag

    def change(self, job_id: str, step: Callable[[Record], Record]) -> Record:
        for _ in range(ATTEMPTS):
            before, tag = self._read(job_id)
            after = step(before)
            if after == before:
                return before
            with contextlib.suppress(PreconditionFailed):
                self.storage.write(RECORDS + job_id, content_of(after), over=tag)
                return after
        raise OSError(f"cannot change {self.storage.address}/{RECORDS}{job_id}: other processes keep changing it")

    def has_input(self, job_id: str) -> bool:
        return next(self.storage.list(f"{INPUTS}{job_id}/"), None) is not None

    def lines(self, job_id: str) -> Iterator[bytes]:
        rest = b""
        for entry in self.storage.list(f"{INPUTS}{job_id}/"):
            if not entry.key.endswith(VECTORS):
                *lines, rest = (rest + self.storage.read(entry.key)[0]).split(b"\n")
                yield from lines

    @contextmanager
    def vectors(self, job_id: str) -> Iterator[Path | None]:
        path = self.scratch / f".spool-{uuid.uuid4().hex}.npy"
        with path.open("wb") as file:
            claim(file.fileno())  # if this process is killed, `sweep` deletes the file
            try:
                self.storage.download(f"{INPUTS}{job_id}/{VECTORS}", path)
            except FileNotFoundError:
                yield None
            else:
                yield path
            finally:
                path.unlink(missing_ok=True)

    def drop_input(self, job_id: str) -> None:
        drop_input(self.storage, job_id)

    def remove(self, job_id: str) -> None:
        with contextlib.suppress(NotFound, CorruptArtifact):
            self._free_key(job_id, self.read(job_id).key)
        self.storage.delete([RECORDS + job_id])
        drop_input(self.storage, job_id)

    def sweep(self) -> None:
        sweep(*self.scratch.glob(".spool-*"))
        for item in self.garbage(ABANDONED):
            item.remove()

    def garbage(self, age: float) -> Iterator[Garbage]:
        """Yields input without a record. Lists the input before the records: if a job is created in between, its record
        is found, and its input is kept."""
        arrived = [(name, list(entries)) for name, entries in groupby(self.storage.list(INPUTS), job_of)]
        if not arrived:
            return
        # Input that changed within the last hour (ABANDONED) is kept, because it may still be arriving. `modified` is
        # from the storage's clock, `now` from this machine's. The clocks may differ by minutes, but not by an hour.
        known, now = set(self.names()), self.now()
        for name, entries in arrived:
            newest = max(entry.modified for entry in entries)
            if name not in known and (now - newest).total_seconds() > max(age, ABANDONED):
                size = sum(entry.size for entry in entries)
                place = f"{self.storage.address}/{INPUTS}{name}"
                yield Garbage(place, "left unfinished", size, partial(drop_input, self.storage, name))

    def take(self, key: str, job_id: str, fingerprint: str) -> str:
        place, mine = KEYS + key_name(key), json_bytes({"job": job_id, "fingerprint": fingerprint})
        for _ in range(ATTEMPTS):
            with contextlib.suppress(PreconditionFailed):
                self.storage.write(place, mine, new=True)
                return job_id
            try:
                content, tag = self.storage.read(place)
                earlier = parsed(content, place)
                holder, theirs = str(earlier["job"]), earlier.get("fingerprint")
                self.read(holder)
            except FileNotFoundError:  # another process has just freed the key
                continue
            except (NotFound, KeyError):  # the key's job is gone: a process died before it freed the key
                with contextlib.suppress(PreconditionFailed):
                    self.storage.write(place, mine, over=tag)
                    return job_id
                continue
            if theirs != fingerprint:
                raise used_otherwise()
            return holder
        raise OSError(f"cannot change {self.storage.address}/{place}: other processes keep changing it")

    def taken(self, key: str) -> bool:
        with contextlib.suppress(FileNotFoundError):
            self.storage.tag(KEYS + key_name(key))
            return True
        return False

    def free_keys(self, deleted: Collection[str] = ()) -> None:
        """Frees the keys of the `deleted` jobs. `remove` has already freed the keys of removed jobs."""
        for job_id in deleted:
            with contextlib.suppress(NotFound, CorruptArtifact):
                self._free_key(job_id, self.read(job_id).key)

    def _free_key(self, job_id: str, key: str | None) -> None:
        if key is not None and self._holder(KEYS + key) == job_id:
            self.storage.delete([KEYS + key])

    def _holder(self, place: str) -> str | None:
        """The id of the job that has the key stored at `place`; None if no job has it."""
        with contextlib.suppress(FileNotFoundError, CorruptArtifact):
            return str(parsed(self.storage.read(place)[0], place).get("job"))
        return None


def content_of(record: Record) -> bytes:
    """The stored form of a record, with a random value (`change`). If the reply to a write is lost, `write` reads the
    record again. The write succeeded if the record contains the same random value."""
    beside = {"decided": record.decided, "publishing": record.publishing, "key": record.key}
    return json_bytes({**to_facts(record.job), **beside, "change": uuid.uuid4().hex})


def job_of(entry: Entry) -> str:
    return entry.key.removeprefix(INPUTS).partition("/")[0]
