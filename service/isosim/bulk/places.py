"""Folders that bulk jobs read and write; local, or in object storage through fsspec."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import fsspec

from isosim.errors import Conflict, Unavailable
from isosim.store.artifacts import fsync, write_atomically
from isosim.store.blobs import Changed, client_options, opened, remote


@contextmanager
def reaching(where: str) -> Iterator[None]:
    """Converts errors of storage clients to Unavailable.

    Callers catch only IsosimError and OSError. Storage clients also raise other errors.

    Raises:
        Unavailable: the client is not installed, or cannot reach the storage.
    """
    try:
        yield
    except ImportError as error:
        raise Unavailable(f"{where}: {error}; a bucket needs an extra: pip install 'isosim[bucket]'") from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "obstore":
            raise
        raise Unavailable(f"{where}: {' '.join(str(error).split('Debug source')[0].split())}") from error


class Place:
    """A folder, given by a path or the address of a bucket. Files in it are written atomically."""

    def __init__(self, address: str) -> None:
        with reaching(address):
            options: dict[str, Any] = {}
            if remote(address) and not address.startswith("file:"):
                from obstore.fsspec import register  # noqa: PLC0415 - an extra

                register(address.partition(":")[0])
                options = client_options()
            self.fs, self.root = fsspec.core.url_to_fs(address, **options)
        self.local = "file" in self.fs.protocol
        self.address = str(Path(address).resolve()) if self.local and "://" not in address else address.rstrip("/")

    def path(self, name: str) -> str:
        return f"{self.root}/{name}" if name else str(self.root)

    def below(self, name: str) -> "Place":
        return Place(f"{self.address}/{name}")

    def read(self, name: str, start: int | None = None, stop: int | None = None) -> bytes:
        """Reads bytes `start` to `stop` − 1 of a file. Raises FileNotFoundError if the file does not exist."""
        with reaching(self.address):
            return cast(bytes, self.fs.cat_file(self.path(name), start=start, end=stop))

    def open(self, name: str) -> BinaryIO:
        with reaching(self.address):
            return cast(BinaryIO, self.fs.open(self.path(name), "rb"))

    def write(self, name: str, content: bytes) -> None:
        """Writes a file atomically: locally by a rename, in object storage by a single put."""
        path = self.path(name)
        with reaching(self.address):
            if self.local:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                write_atomically(Path(path), content)
            else:
                self.fs.pipe_file(path, content)

    def create(self, name: str, content: bytes) -> None:
        """Writes a new file atomically. Raises Conflict if it exists."""
        path = Path(self.path(name))
        try:
            with reaching(self.address):
                if not self.local:
                    opened(self.address).write(name, content, new=True)
                    return
            path.parent.mkdir(parents=True, exist_ok=True)
            whole = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
            try:
                write_atomically(whole, content)
                os.link(whole, path)
            finally:
                whole.unlink(missing_ok=True)
            fsync(path.parent)
        except (FileExistsError, Changed):
            raise Conflict(
                f"{self.address}/{name} was created by another process in the meantime; run the command again"
            ) from None

    def remove(self, name: str) -> None:
        with reaching(self.address):
            self.fs.rm(self.path(name), recursive=True)

    def names(self, folder: str = "") -> dict[str, int]:
        """Name -> size in bytes, for each file of a folder except hidden files; empty if the folder does not exist."""
        with reaching(self.address):
            self.fs.invalidate_cache()
            try:
                entries: list[dict[str, Any]] = self.fs.ls(self.path(folder), detail=True)
            except FileNotFoundError:
                return {}
        every = {str(one["name"]).rstrip("/").rpartition("/")[2]: one for one in entries if one["type"] == "file"}
        return {name: int(one["size"]) for name, one in every.items() if name and not name.startswith(".")}
