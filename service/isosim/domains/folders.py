"""Domains in a folder: `<domain>/<version>/` and `<domain>/aliases.json`, which is changed under a lock."""

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

from isosim.store.artifacts import (
    MANIFEST,
    Garbage,
    building,
    drop,
    leftovers,
    locked,
    parsed_manifest,
    seal,
    size_of,
    sweep,
    write_atomically,
)
from isosim.wording import version_name

ALIASES = "aliases.json"
TOMBSTONE = "deleted"  # marks a deleted version; its folder stays, so that the number is not used again
CHANGES = ".changes"  # folder of announcements; begins with a dot, so that no domain has the same name
ANNOUNCED = 300.0  # seconds that announcements are kept; later, a reader finds the change at its full scan


@dataclass(frozen=True)
class AliasSnapshot:
    """A domain's aliases as they were read. `tag`: in a bucket, the ETag of the aliases' object. `replace` fails if the
    ETag has changed meanwhile."""

    content: bytes | None  # None: the domain has no aliases
    tag: str | None = None


# Called with a version's number before it is published; if it raises an error, nothing is published.
Claim = Callable[[int], None]


class VersionStorage(Protocol):
    """Storage of domains: versions, which never change, and aliases, which are always replaced as a whole.

    Callers must check domain names first, because names become part of paths and keys. Methods raise FileNotFoundError
    if a file does not exist, and OSError if the storage cannot be reached.
    """

    # Whether `changing` locks the domain. If not, a deletion first writes the versions into the list `deleted` of the
    # aliases. Other processes then cannot promote these versions.
    exclusive: bool

    def prepare(self) -> None:
        """Creates the folder, or checks that the bucket can be reached."""
        ...

    def names(self, after: str, contains: str, wanted: Callable[[str], bool]) -> Iterator[str]:
        """Yields the sorted names of domains that have a version. Each name sorts after `after` and contains the text
        `contains`, and `wanted` returns True for it."""
        ...

    def versions(self, domain: str) -> list[int]:
        """Existing versions in ascending order."""
        ...

    def highest(self, domain: str) -> int:
        """The highest version number ever used; 0 before the first version."""
        ...

    def where(self, domain: str, version: int | None = None) -> str:
        """The location of a domain or a version, for messages."""
        ...

    def manifest(self, domain: str, version: int) -> dict[str, Any]: ...

    def read(self, domain: str, version: int, name: str) -> bytes:
        """One file of a version."""
        ...

    def files(self, domain: str, version: int, manifest: Mapping[str, Any]) -> contextlib.AbstractContextManager[Path]:
        """A folder with the version's files, valid inside the context."""
        ...

    def building(self, domain: str) -> contextlib.AbstractContextManager[Path]:
        """An empty folder for the files of a new version. It is removed if the context ends without `publish`."""
        ...

    def publish(self, domain: str, folder: Path, facts: Mapping[str, object], claim: Claim, least: int = 1) -> int:
        """Publishes the folder as a version, with `facts` and the version's number in the manifest. Returns the number:
        the highest used number + 1, or `least` if that is higher.

        The version becomes visible as a whole or not at all.
        """
        ...

    def retire(self, domain: str, version: int) -> None:
        """Occupies a version number that is still free, so that no version can be published under it."""
        ...

    def bury(self, domain: str, version: int) -> None:
        """Deletes a version; its number is never used again."""
        ...

    def size(self, domain: str, version: int) -> int:
        """Bytes of a version's files."""
        ...

    def aliases(self, domain: str) -> AliasSnapshot: ...

    def changing(self, domain: str) -> contextlib.AbstractContextManager[AliasSnapshot]:
        """Yields the aliases to a caller that will replace them; holds the domain's lock, if the storage has locks."""
        ...

    def replace(self, domain: str, before: AliasSnapshot, content: bytes) -> None:
        """Replaces the aliases. Raises Conflict if another writer has replaced them since `before` was read."""
        ...

    def announce(self, domain: str) -> None:
        """Tells readers that the domain's aliases were replaced. Raises OSError if this fails."""
        ...

    def bell(self) -> str | None:
        """A value that changes with every announcement. Callers need to call `announced` only if the value has changed
        or is None.

        Always None in a folder, where calling `announced` costs little. None in a bucket before the first announcement.
        """
        ...

    def announced(self) -> Iterable[str]:
        """Names of recent announcements: `<ns>-<domain>`, where ns is the time in nanoseconds. No two announcements
        have the same name, so a reader recognizes new announcements by their names."""
        ...

    def stamps(self, domains: Mapping[str, frozenset[int]]) -> dict[str, Hashable]:
        """Domain -> a value that changes when the domain's aliases are replaced or a given version is deleted.

        Args:
            domains: domain -> versions.

        Raises:
            OSError: the volume is not reachable. Without this error, all domains would seem to be deleted.
        """
        ...

    def missing(self, domain: str, versions: Iterable[int]) -> set[int]:
        """Returns which of the versions are deleted. Raises OSError if the volume is not reachable."""
        ...

    def sweep(self, domain: str) -> None:
        """Removes old files. In a folder: unfinished files of killed writers. In a bucket: announcements that every
        reader has seen."""
        ...

    def garbage(self, age: float) -> Iterator[Garbage]:
        """Files that belong to no version and are older than `age` seconds: unfinished uploads, announcements, and
        placeholders for the numbers of deleted versions. A domain's highest number keeps its placeholder, so that the
        number is not used again."""
        ...


class FolderStorage:
    """Domains on a local or shared volume."""

    exclusive = True

    def __init__(self, root: Path) -> None:
        self.root = root
        self._prepared = False
        self._swept = -ANNOUNCED  # when this process last removed old announcements (monotonic clock, seconds)

    def prepare(self) -> None:
        """Creates the folder. From then on, a missing folder counts as an unreachable volume, not as an empty store."""
        self.root.mkdir(parents=True, exist_ok=True)
        self._prepared = True

    def names(self, after: str, contains: str, wanted: Callable[[str], bool]) -> Iterator[str]:
        with contextlib.suppress(FileNotFoundError):
            for name in sorted(os.listdir(self.root)):  # noqa: PTH208 - pathlib takes three times as long
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
        content = (self._folder(domain, version) / MANIFEST).read_bytes()
        return parsed_manifest(content, f"{MANIFEST} of {version_name(domain, version)}")

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
            except FileExistsError:  # another worker has already used the number
                (folder / MANIFEST).unlink()
                continue
            return version

    def retire(self, domain: str, version: int) -> None:
        with building(self.root / domain) as folder, contextlib.suppress(OSError):  # OSError: the number is in use
            (folder / TOMBSTONE).touch()
            folder.rename(self._folder(domain, version))

    def bury(self, domain: str, version: int) -> None:
        folder = self._folder(domain, version)
        (folder / MANIFEST).unlink()  # first, because a version without a manifest counts as deleted
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
        """Announcements that were written before `before` (seconds since the epoch), by the volume's clock. The times
        in the names are not used, because the writers' clocks may differ."""
        with contextlib.suppress(FileNotFoundError), os.scandir(self.root / CHANGES) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # removed by another process
                    if entry.stat().st_mtime < before:
                        yield Path(entry)

    def bell(self) -> str | None:
        return None

    def announced(self) -> Iterable[str]:
        try:
            # `listdir` opens the folder, which makes an NFS client ask its server instead of its cache.
            return os.listdir(self.root / CHANGES)  # noqa: PTH208
        except FileNotFoundError:
            self._check_there()
            return ()

    def _check_there(self) -> None:
        """Raises OSError if the volume is not reachable."""
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
                with (self._folder(domain, version) / MANIFEST).open("rb"):  # not `stat`, which NFS clients may cache
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
                elif folder != numbered[-1]:  # the highest number stays, so that it is not used again
                    yield Garbage(
                        str(folder), "placeholder for the number of a deleted version", 0, partial(drop, folder)
                    )

    def _finish(self, folder: Path) -> None:
        """Completes an interrupted deletion. Two processes may call this at the same time."""
        if not (folder / MANIFEST).exists():
            (folder / TOMBSTONE).touch()
            for file in folder.iterdir():
                if file.name != TOMBSTONE:
                    file.unlink(missing_ok=True)


def facts_of(file: str) -> tuple[int, int] | None:
    """Modification time and inode of a file. They change whenever the file is replaced. None if there is no file."""
    try:
        status = os.stat(file)  # noqa: PTH116 - takes a sixth of pathlib's time, for a thousand files
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_ino


def drop_all(files: Iterable[Path]) -> None:
    for file in files:
        drop(file)
