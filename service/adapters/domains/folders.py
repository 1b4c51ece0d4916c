"""Domains in a folder: `<domain>/<version>/` and `<domain>/aliases.json`, changed under a lock."""

import contextlib
import os
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from service.adapters.storage.artifacts import (
    MANIFEST,
    Garbage,
    building,
    drop,
    leftovers,
    locked,
    read_manifest,
    seal,
    size_of,
    sweep,
    write_atomically,
)

ALIASES = "aliases.json"
TOMBSTONE = "deleted"  # keeps a deleted version's number from being given again
CHANGES = ".changes"  # no domain's name begins with a dot
ANNOUNCED = 300.0  # s that an announcement stays: readers list them all, and a full look has found it long before


@dataclass(frozen=True)
class AliasSnapshot:
    """A domain's aliases as they were read, and the tag by which a later write sees whether they changed."""

    content: bytes | None  # None: there are none
    tag: str | None = None


Claim = Callable[[int], None]  # called with the number a version is about to get; what it raises ends the publication


class VersionStorage(Protocol):
    """Where a store keeps its domains: versions that never change, and aliases that are replaced whole.

    The caller checks names. Methods raise FileNotFoundError where something does not exist, and OSError where the
    place cannot be reached.
    """

    exclusive: bool  # `changing` locks the domain; without a lock, a deletion is announced in the aliases

    def prepare(self) -> None:
        """Looks that the place is there, and makes it where it can."""
        ...

    def names(self, after: str, contains: str, wanted: Callable[[str], bool]) -> Iterator[str]:
        """Sorted names after `after` that contain `contains` and are wanted; only those are looked at in the store."""
        ...

    def versions(self, domain: str) -> list[int]:
        """Existing versions, rising."""
        ...

    def highest(self, domain: str) -> int:
        """The highest version number that was ever given; 0 before the first."""
        ...

    def where(self, domain: str, version: int | None = None) -> str:
        """Of a domain or a version, for messages."""
        ...

    def manifest(self, domain: str, version: int) -> dict[str, Any]: ...

    def read(self, domain: str, version: int, name: str) -> bytes:
        """One file of a version."""
        ...

    def files(self, domain: str, version: int, manifest: Mapping[str, Any]) -> contextlib.AbstractContextManager[Path]:
        """A folder with the version's files, as long as the block lasts."""
        ...

    def building(self, domain: str) -> contextlib.AbstractContextManager[Path]:
        """An empty folder for a version's files."""
        ...

    def publish(self, domain: str, folder: Path, facts: Mapping[str, object], claim: Claim, least: int = 1) -> int:
        """Makes the folder the next version, or number `least` where all numbers from there on are free.

        `version` joins the facts. Appears whole or not at all.
        """
        ...

    def retire(self, domain: str, version: int) -> None:
        """Takes a number, if it is free, so that no version can be published under it any more."""
        ...

    def bury(self, domain: str, version: int) -> None:
        """Deletes a version for good; its number is taken for ever."""
        ...

    def size(self, domain: str, version: int) -> int:
        """Bytes of a version's files."""
        ...

    def aliases(self, domain: str) -> AliasSnapshot: ...

    def changing(self, domain: str) -> contextlib.AbstractContextManager[AliasSnapshot]:
        """Yields the aliases to a caller that is about to replace them."""
        ...

    def replace(self, domain: str, before: AliasSnapshot, content: bytes) -> None:
        """Replaces the aliases. Raises Conflict where another writer replaced them since `before` was read."""
        ...

    def announce(self, domain: str) -> None:
        """Tells readers that the domain's aliases were replaced. OSError where that is impossible."""
        ...

    def announced(self) -> Iterable[str]:
        """Names of the announcements that readers may not have seen: `<ns>-<domain>`, each made once."""
        ...

    def stamps(self, domains: Mapping[str, frozenset[int]]) -> dict[str, Hashable]:
        """For each domain a value that differs after its aliases were replaced or one of these versions was deleted.

        Raises:
            OSError: the volume is away; it must not look as if every domain had been deleted.
        """
        ...

    def missing(self, domain: str, versions: Iterable[int]) -> set[int]:
        """Those of the versions that were deleted. Raises OSError where the volume is away."""
        ...

    def sweep(self, domain: str) -> None:
        """Removes the unfinished files of killed writers."""
        ...

    def garbage(self, age: float) -> Iterator[Garbage]:
        """Things that belong to no version and are at least `age` seconds old: uploads, numbers, announcements."""
        ...


class FolderStorage:
    """On a local or shared volume."""

    exclusive = True

    def __init__(self, root: Path) -> None:
        self.root = root
        self._prepared = False
        self._swept = -ANNOUNCED  # s, monotonic: when this process last removed old announcements

    def prepare(self) -> None:
        """From then on the folder's absence means that the volume is away."""
        self.root.mkdir(parents=True, exist_ok=True)
        self._prepared = True

    def names(self, after: str, contains: str, wanted: Callable[[str], bool]) -> Iterator[str]:
        with contextlib.suppress(FileNotFoundError):
            for name in sorted(os.listdir(self.root)):  # noqa: PTH208 - 10,000 names in a third of the time
                if name > after and contains in name and wanted(name) and self._has_version(name):
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

    def highest(self, domain: str) -> int:
        with contextlib.suppress(FileNotFoundError):
            return max((int(f.name) for f in (self.root / domain).iterdir() if f.name.isdigit()), default=0)
        return 0

    def where(self, domain: str, version: int | None = None) -> str:
        return str(self.root / domain if version is None else self._folder(domain, version))

    def _folder(self, domain: str, version: int) -> Path:
        return self.root / domain / str(version)

    def manifest(self, domain: str, version: int) -> dict[str, Any]:
        return read_manifest(self._folder(domain, version))

    def read(self, domain: str, version: int, name: str) -> bytes:
        return (self._folder(domain, version) / name).read_bytes()

    @contextmanager
    def files(self, domain: str, version: int, manifest: Mapping[str, Any]) -> Iterator[Path]:
        yield self._folder(domain, version)

    def building(self, domain: str) -> contextlib.AbstractContextManager[Path]:
        return building(self.root / domain)

    def publish(self, domain: str, folder: Path, facts: Mapping[str, object], claim: Claim, least: int = 1) -> int:
        place = self.root / domain
        while True:
            version = max(self.highest(domain) + 1, least)
            claim(version)
            try:
                seal(folder, place / str(version), {**facts, "version": version})
            except FileExistsError:  # another worker took the number
                (folder / MANIFEST).unlink()
                continue
            return version

    def retire(self, domain: str, version: int) -> None:
        with building(self.root / domain) as folder, contextlib.suppress(OSError):  # it is taken
            (folder / TOMBSTONE).touch()
            folder.rename(self._folder(domain, version))

    def bury(self, domain: str, version: int) -> None:
        folder = self._folder(domain, version)
        (folder / MANIFEST).unlink()  # first: from here on the version is not there
        (folder / TOMBSTONE).touch()
        for file in folder.iterdir():
            if file.name != TOMBSTONE:
                file.unlink()

    def size(self, domain: str, version: int) -> int:
        return size_of(self._folder(domain, version))

    def aliases(self, domain: str) -> AliasSnapshot:
        try:
            return AliasSnapshot((self.root / domain / ALIASES).read_bytes())
        except FileNotFoundError:
            self._check_there()
            return AliasSnapshot(None)

    @contextmanager
    def changing(self, domain: str) -> Iterator[AliasSnapshot]:
        with locked(self.root / domain / ".lock"):
            yield self.aliases(domain)

    def replace(self, domain: str, before: AliasSnapshot, content: bytes) -> None:
        write_atomically(self.root / domain / ALIASES, content)

    def announce(self, domain: str) -> None:
        folder = self.root / CHANGES
        folder.mkdir(exist_ok=True)
        while True:
            place = folder / f"{time.time_ns():020d}-{domain}"
            with contextlib.suppress(FileExistsError):  # another process announced at the same nanosecond
                place.touch(exist_ok=False)
                break
        if time.monotonic() - self._swept > ANNOUNCED / 2:
            self._swept = time.monotonic()
            for old in self._old_announcements(place.stat().st_mtime - ANNOUNCED):
                drop(old)

    def _old_announcements(self, before: float) -> Iterator[Path]:
        """Those made before a time by the volume's clock: the clocks of the machines that write may differ."""
        with contextlib.suppress(FileNotFoundError), os.scandir(self.root / CHANGES) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # swept by another process
                    if entry.stat().st_mtime < before:
                        yield Path(entry)

    def announced(self) -> Iterable[str]:
        try:
            return os.listdir(self.root / CHANGES)  # noqa: PTH208 - opens the folder: NFS clients ask the server then
        except FileNotFoundError:
            self._check_there()
            return ()

    def _check_there(self) -> None:
        """Raises OSError where the volume is away."""
        if self._prepared:
            self.root.stat()

    def stamps(self, domains: Mapping[str, frozenset[int]]) -> dict[str, Hashable]:
        stamps: dict[str, Hashable] = {}
        there = False
        for name, versions in domains.items():
            place = f"{self.root}/{name}"
            files = (f"{place}/{ALIASES}", *(f"{place}/{version}/{MANIFEST}" for version in sorted(versions)))
            facts = [facts_of(file) for file in files]
            there = there or any(facts)
            stamps[name] = (versions, *facts)
        if not there:
            self._check_there()
        return stamps

    def missing(self, domain: str, versions: Iterable[int]) -> set[int]:
        missing = set()
        for version in versions:
            try:
                with (self._folder(domain, version) / MANIFEST).open("rb"):  # NFS clients may answer `stat` from memory
                    pass
            except FileNotFoundError:
                missing.add(version)
        if missing:
            self._check_there()
        return missing

    def sweep(self, domain: str) -> None:
        sweep(*(self.root / domain).glob(".building-*"))

    def garbage(self, age: float) -> Iterator[Garbage]:
        yield from leftovers(chain(self.root.glob("*/.building-*"), self.root.glob(f"*/.{ALIASES}.*")), age)
        news = list(self._old_announcements(time.time() - max(age, ANNOUNCED)))
        if news:
            yield Garbage(str(self.root / CHANGES), f"{len(news)} announcements", 0, partial(drop_all, news))
        for domain in sorted(path for path in self.root.glob("*") if path.is_dir()):
            numbered = sorted(
                (path for path in domain.iterdir() if path.name.isdigit()), key=lambda path: int(path.name)
            )
            for folder in numbered:
                if (folder / MANIFEST).exists() or time.time() - folder.stat().st_mtime < age:
                    continue
                rest = [file for file in folder.iterdir() if file.name != TOMBSTONE]
                if rest:
                    yield Garbage(str(folder), "half deleted", size_of(folder), partial(self._finish, folder))
                elif folder != numbered[-1]:  # the highest number keeps all below it from being given again
                    yield Garbage(str(folder), "the number of a deleted version", 0, partial(drop, folder))

    def _finish(self, folder: Path) -> None:
        """Completes a deletion that was cut off; another process may be completing it at the same time."""
        if not (folder / MANIFEST).exists():
            (folder / TOMBSTONE).touch()
            for file in folder.iterdir():
                if file.name != TOMBSTONE:
                    file.unlink(missing_ok=True)


def facts_of(file: str) -> tuple[int, int] | None:
    """Modification time and inode, which change whenever another file is moved to its place; None without a file."""
    try:
        status = os.stat(file)  # noqa: PTH116 - a thousand of them: a sixth of pathlib's time
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_ino


def drop_all(files: Iterable[Path]) -> None:
    for file in files:
        drop(file)
