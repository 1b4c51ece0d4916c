"""The folder a training works in, `OUTPUT.training`: whose it is, and from which checkpoint it goes on."""

import contextlib
import fcntl
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from service.adapters.artifacts import read_json, write_json
from service.core.errors import Conflict

WHOLE = "whole.json"  # in a checkpoint: the size of each of its files, written last
CHECKPOINT = re.compile(r"checkpoint-(\d+)")


class Working:
    """Checkpoints of one training. A killed one leaves a checkpoint half-written or half-deleted: it does not count."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextlib.contextmanager
    def of(self, identity: dict[str, Any], differences: Any) -> Iterator[None]:
        """Holds the folder for one process and one identity.

        Raises:
            Conflict: another process trains there, or another training was begun there.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Conflict(f"another process trains in {self.folder}") from None
            place = self.folder / "identity.json"
            if not place.is_file():
                write_json(place, identity)
            elif found := differences(read_json(place), json.loads(json.dumps(identity))):
                raise Conflict(
                    f"{self.folder} holds a training that was begun otherwise ({'; '.join(found)}); delete it, or give "
                    "another --output"
                )
            yield

    def checkpoint(self, step: int) -> Path:
        return self.folder / f"checkpoint-{step}"

    def seal(self, step: int) -> None:
        """Declares a checkpoint whole."""
        write_json(self.checkpoint(step) / WHOLE, sizes(self.checkpoint(step)))

    def newest(self) -> Path | None:
        """The newest whole checkpoint; what is not whole is deleted."""
        whole: dict[int, Path] = {}
        for place in self.folder.iterdir():
            if (match := CHECKPOINT.fullmatch(place.name)) is None:
                continue
            if (place / WHOLE).is_file() and read_json(place / WHOLE) == sizes(place):
                whole[int(match[1])] = place
            else:
                shutil.rmtree(place)
        return whole[max(whole)] if whole else None

    def delete(self) -> None:
        shutil.rmtree(self.folder)


def sizes(folder: Path) -> dict[str, int]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != WHOLE)
    return {str(path.relative_to(folder)): path.stat().st_size for path in files}
