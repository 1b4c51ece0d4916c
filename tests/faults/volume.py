"""A file system of its own that can be full or read-only."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PAGE = 4096  # bytes


@dataclass
class Volume:
    """A small tmpfs; its `store` is a model store."""

    path: Path

    @property
    def store(self) -> Path:
        return self.path / "store"

    @property
    def free(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    @contextmanager
    def full(self, leaving: int = 0) -> Iterator[None]:
        """No room but for so many bytes."""
        filler = self.path / "filler"
        with filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(PAGE, self.free - leaving))
        try:
            yield
        finally:
            filler.unlink()

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Nobody may have a file open for writing: a server without Redis has its lock."""
        mount("-o", "remount,ro", str(self.path))
        try:
            yield
        finally:
            mount("-o", "remount,rw", str(self.path))


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)
