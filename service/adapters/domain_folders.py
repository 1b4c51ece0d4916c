"""Domains in a folder: `<domain>/<version>/` and `<domain>/aliases.json`, changed under a lock."""

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from service.adapters.artifacts import MANIFEST, building, locked, read_manifest, seal, sweep, write_atomically

ALIASES = "aliases.json"
TOMBSTONE = "deleted"  # keeps a deleted version's number from being given again


@dataclass(frozen=True)
class Aliased:
    """A domain's aliases as they were read, and what tells whether they are still the same."""

    content: bytes | None  # None: there are none
    tag: str | None = None


class Shelf(Protocol):
    """Where a store keeps its domains: versions that never change, and aliases that are replaced whole.

    Names are checked by whoever calls. What is not there is a FileNotFoundError, what cannot be reached an OSError.
    """

    exclusive: bool  # nobody else changes the domain inside `changing`; else a deletion is announced in the aliases

    def prepare(self) -> None:
        """Looks that the place is there, and makes it where it can."""
        ...

    def names(self, after: str, contains: str) -> Iterator[str]:
        """Names in their order, beyond one, with a word in them; there may be others among them that are none."""
        ...

    def versions(self, domain: str) -> list[int]:
        """Existing versions, rising."""
        ...

    def where(self, domain: str, version: int | None = None) -> str:
        """Of a domain or a version, for messages."""
        ...

    def manifest(self, domain: str, version: int) -> dict[str, Any]: ...

    def read(self, domain: str, version: int, name: str) -> bytes:
        """One file of a version."""
        ...

    def files(self, domain: str, version: int) -> contextlib.AbstractContextManager[Path]:
        """A folder with the version's files, as long as the block lasts."""
        ...

    def building(self, domain: str) -> contextlib.AbstractContextManager[Path]:
        """An empty folder for a version's files."""
        ...

    def publish(self, domain: str, folder: Path, facts: Mapping[str, object]) -> int:
        """Makes the folder the next version; `version` joins the facts. Appears whole or not at all."""
        ...

    def bury(self, domain: str, version: int) -> None:
        """Deletes a version for good; its number is taken for ever."""
        ...

    def aliases(self, domain: str) -> Aliased: ...

    def changing(self, domain: str) -> contextlib.AbstractContextManager[Aliased]:
        """The aliases, for whoever is about to replace them."""
        ...

    def replace(self, domain: str, before: Aliased, content: bytes) -> None:
        """Raises Conflict where somebody replaced them since they were read."""
        ...

    def changes(self, domains: Collection[str]) -> dict[str, int]:
        """Of those domains that have aliases, a stamp each that differs after they changed; cheap enough to poll."""
        ...

    def sweep(self, domain: str) -> None:
        """Removes what killed writers left."""
        ...


class FolderShelf:
    """On a local or shared volume."""

    exclusive = True

    def __init__(self, root: Path) -> None:
        self.root = root
        self._prepared = False

    def prepare(self) -> None:
        """From then on the folder's absence means that the volume is away."""
        self.root.mkdir(parents=True, exist_ok=True)
        self._prepared = True

    def names(self, after: str, contains: str) -> Iterator[str]:
        with contextlib.suppress(FileNotFoundError):
            for name in sorted(os.listdir(self.root)):  # noqa: PTH208 - 10,000 names in a third of the time
                if name > after and contains in name and self._has_version(name):
                    yield name

    def _has_version(self, domain: str) -> bool:
        try:
            with os.scandir(self.root / domain) as entries:
                return any(entry.name.isdigit() and Path(entry, MANIFEST).is_file() for entry in entries)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def versions(self, domain: str) -> list[int]:
        folders = (self.root / domain).glob(f"[0-9]*/{MANIFEST}")
        return sorted(int(f.parent.name) for f in folders if f.parent.name.isdigit())

    def where(self, domain: str, version: int | None = None) -> str:
        return str(self.root / domain if version is None else self._folder(domain, version))

    def _folder(self, domain: str, version: int) -> Path:
        return self.root / domain / str(version)

    def manifest(self, domain: str, version: int) -> dict[str, Any]:
        return read_manifest(self._folder(domain, version))

    def read(self, domain: str, version: int, name: str) -> bytes:
        return (self._folder(domain, version) / name).read_bytes()

    @contextmanager
    def files(self, domain: str, version: int) -> Iterator[Path]:
        yield self._folder(domain, version)

    def building(self, domain: str) -> contextlib.AbstractContextManager[Path]:
        return building(self.root / domain)

    def publish(self, domain: str, folder: Path, facts: Mapping[str, object]) -> int:
        place = self.root / domain
        while True:
            taken = [int(f.name) for f in place.iterdir() if f.name.isdigit()]
            version = max(taken, default=0) + 1
            try:
                seal(folder, place / str(version), {**facts, "version": version})
            except FileExistsError:  # another worker took the number
                (folder / MANIFEST).unlink()
                continue
            return version

    def bury(self, domain: str, version: int) -> None:
        folder = self._folder(domain, version)
        (folder / MANIFEST).unlink()  # first: from here on the version is not there
        (folder / TOMBSTONE).touch()
        for file in folder.iterdir():
            if file.name != TOMBSTONE:
                file.unlink()

    def aliases(self, domain: str) -> Aliased:
        try:
            return Aliased((self.root / domain / ALIASES).read_bytes())
        except FileNotFoundError:
            return Aliased(None)

    @contextmanager
    def changing(self, domain: str) -> Iterator[Aliased]:
        with locked(self.root / domain / ".lock"):
            yield self.aliases(domain)

    def replace(self, domain: str, before: Aliased, content: bytes) -> None:
        write_atomically(self.root / domain / ALIASES, content)

    def changes(self, domains: Collection[str]) -> dict[str, int]:
        """Raises OSError where the volume is away; it must not look as if all domains had been deleted."""
        found = {}
        for name in domains:
            with contextlib.suppress(FileNotFoundError):
                facts = (self.root / name / ALIASES).stat()
                found[name] = hash((facts.st_mtime_ns, facts.st_ino))
        if self._prepared and not found:
            self.root.stat()
        return found

    def sweep(self, domain: str) -> None:
        sweep(*(self.root / domain).glob(".building-*"))
