"""Idempotency keys: `jobs/idempotency/<hash of the key>` is a second name of the claim in the job made first."""

import contextlib
import hashlib
import os
from pathlib import Path

from service.adapters.artifacts import fsync, read_json, write_json
from service.core.errors import Conflict, CorruptArtifact

CLAIM = "claim"


class Claims:
    """Of all jobs below `root`."""

    def __init__(self, root: Path) -> None:
        self.root, self.keys = root, root / "idempotency"

    def write(self, folder: Path, job_id: str, fingerprint: str) -> None:
        """Into a job that is being built; nobody sees it before `take`."""
        write_json(folder / CLAIM, {"job": job_id, "fingerprint": fingerprint})

    def take(self, key: str, job_id: str, fingerprint: str) -> str:
        """The id of the job that has the key: this one, or the one with the same content that was faster.

        Raises:
            Conflict: the key was used for something else.
        """
        self.keys.mkdir(exist_ok=True)
        place = self.keys / hashlib.sha256(key.encode()).hexdigest()
        try:
            os.link(self.root / job_id / CLAIM, place)
        except FileExistsError:
            earlier = read_json(place)
            if earlier["fingerprint"] != fingerprint:
                raise Conflict("Idempotency-Key was used for another calibration") from None
            return str(earlier["job"])
        fsync(self.keys)
        return job_id

    def drop(self, jobs: set[str]) -> None:
        """Frees the keys of jobs that are gone."""
        for key in self.keys.glob("*") if jobs else ():
            with contextlib.suppress(FileNotFoundError, CorruptArtifact):
                if read_json(key).get("job") in jobs:
                    key.unlink()
