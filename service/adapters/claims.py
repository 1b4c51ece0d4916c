"""Idempotency keys: `jobs/idempotency/<hash of the key>` is a second name of the claim in the job made first."""

import contextlib
import hashlib
import os
from collections.abc import Collection
from pathlib import Path

from service.adapters.artifacts import fsync, locked, read_json, write_json
from service.core.errors import Conflict, CorruptArtifact

CLAIM, LOCK = "claim", ".lock"


class Claims:
    """Of all jobs below `root`; `record` is the file that each of them has."""

    def __init__(self, root: Path, record: str) -> None:
        self.root, self.record, self.keys = root, record, root / "idempotency"

    def write(self, folder: Path, job_id: str, fingerprint: str) -> None:
        """Into a job that is being built; nobody sees it before `take`."""
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
