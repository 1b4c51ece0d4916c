"""Domains in object storage, which has no locks: a version's files are written first, then its manifest.

    domains/files/<domain>/<upload>/<file>   files of one upload; never changed
    domains/manifests/<domain>!<version>     a version's manifest, which makes the version visible. Created only if it
                                             does not exist. Empty after a deletion: the number is not used again
    domains/aliases/<domain>                 replaced only if it has not changed since it was read
    domains/changes/<ns>-<domain>            announcement: the domain's aliases were replaced at the time ns
                                             (nanoseconds). Readers read only the aliases of announced domains
    domains/bell                             replaced after each announcement. Readers list the announcements only if
                                             this object has changed

`!` sorts before all characters that a name may have, so that keys have the same order as names.
"""

import contextlib
import tempfile
import time
import uuid
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any

import orjson

from isosim.domains.folders import AliasSnapshot, Claim
from isosim.errors import Conflict, CorruptArtifact, IsosimError
from isosim.store.artifacts import MANIFEST, Garbage, manifest_bytes, parsed_manifest, sha256
from isosim.store.object_storage import BATCH, Entry, ObjectStorage, PreconditionFailed
from isosim.wording import version_name

MANIFESTS, ALIASES, FILES, CHANGES = "domains/manifests/", "domains/aliases/", "domains/files/", "domains/changes/"
BELL = "domains/bell"
# On S3, listing one page of objects costs as much as 12 requests for one ETag each. `stamps` needs many ETags and
# chooses the cheaper way.
LISTING = 12
OVERLAP = 300.0  # maximum seconds that a writer's clock may be behind a reader's clock
ANNOUNCED = 3600.0  # seconds that announcements are kept; by then, all readers have listed them or made a full scan
SIDE_BY_SIDE = 8  # files of a version that are transferred in parallel


class BucketStorage:
    """Domains in a bucket. Workers and API processes may run on different machines."""

    exclusive = False

    def __init__(self, storage: ObjectStorage) -> None:
        self.storage = storage
        self._pages = 1  # number of pages in the last listing of all aliases

    def prepare(self) -> None:
        next(self.storage.list(MANIFESTS), None)

    def names(self, after: str, contains: str, wanted: Callable[[str], bool]) -> Iterator[str]:
        beyond = f"{MANIFESTS}{after}!~" if after else ""
        for name, versions in groupby(self.storage.list(MANIFESTS, beyond), lambda entry: split(entry)[0]):
            if contains in name and wanted(name) and any(version.size for version in versions):
                yield name

    def versions(self, domain: str) -> list[int]:
        return sorted(split(entry)[1] for entry in self._numbers(domain) if entry.size)

    def highest(self, domain: str) -> int:
        return max((split(entry)[1] for entry in self._numbers(domain)), default=0)

    def _numbers(self, domain: str) -> Iterator[Entry]:
        return self.storage.list(f"{MANIFESTS}{domain}!")

    def where(self, domain: str, version: int | None = None) -> str:
        key = ALIASES + domain if version is None else f"{MANIFESTS}{domain}!{version}"
        return f"{self.storage.address}/{key}"

    def manifest(self, domain: str, version: int) -> dict[str, Any]:
        content, _ = self.storage.read(f"{MANIFESTS}{domain}!{version}")
        if not content:
            raise FileNotFoundError(f"{self.where(domain, version)} is deleted")
        return parsed_manifest(content, f"{MANIFEST} of {version_name(domain, version)}")

    def _files(self, domain: str, manifest: Mapping[str, Any]) -> str:
        return f"{FILES}{domain}/{manifest['upload']}/"

    def read(self, domain: str, version: int, name: str) -> bytes:
        return self.storage.read(self._files(domain, self.manifest(domain, version)) + name)[0]

    @contextmanager
    def files(self, domain: str, version: int, manifest: Mapping[str, Any]) -> Iterator[Path]:
        place = self._files(domain, manifest)
        with tempfile.TemporaryDirectory(prefix="isosim-") as temporary:
            folder = Path(temporary) / domain / str(version)
            folder.mkdir(parents=True)
            (folder / MANIFEST).write_bytes(manifest_bytes(manifest))

            def fetch(name: str) -> None:
                with contextlib.suppress(FileNotFoundError):  # `verified` reports the missing file
                    self.storage.download(place + name, folder / name)

            with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
                list(pool.map(fetch, manifest["files"]))
            yield folder

    @contextmanager
    def building(self, domain: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="isosim-") as folder:
            yield Path(folder)

    def publish(self, domain: str, folder: Path, facts: Mapping[str, object], claim: Claim, least: int = 1) -> int:
        files = {file.name: sha256(file) for file in sorted(folder.iterdir())}
        upload = uuid.uuid4().hex
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            list(pool.map(lambda name: self.storage.upload(f"{FILES}{domain}/{upload}/{name}", folder / name), files))
        while True:
            version = max(self.highest(domain) + 1, least)
            try:
                claim(version)
            except IsosimError:
                self.storage.delete([f"{FILES}{domain}/{upload}/{name}" for name in files])
                raise
            content = manifest_bytes({**facts, "version": version, "upload": upload, "files": files})
            with contextlib.suppress(PreconditionFailed):  # another worker has already used the number
                self.storage.write(f"{MANIFESTS}{domain}!{version}", content, new=True)
                return version

    def retire(self, domain: str, version: int) -> None:
        with contextlib.suppress(PreconditionFailed):  # the number is already in use
            self.storage.write(f"{MANIFESTS}{domain}!{version}", b"", new=True)

    def bury(self, domain: str, version: int) -> None:
        try:
            place = self._files(domain, self.manifest(domain, version))
        except FileNotFoundError:  # deleted already
            return
        except (CorruptArtifact, KeyError):  # the manifest does not say where the files are; `garbage` finds them
            place = None
        self.storage.write(f"{MANIFESTS}{domain}!{version}", b"")  # an empty manifest: the version is deleted
        if place is not None:
            self.storage.delete([entry.key for entry in self.storage.list(place)])

    def size(self, domain: str, version: int) -> int:
        return sum(entry.size for entry in self.storage.list(self._files(domain, self.manifest(domain, version))))

    def aliases(self, domain: str) -> AliasSnapshot:
        try:
            return AliasSnapshot(*self.storage.read(ALIASES + domain))
        except FileNotFoundError:
            return AliasSnapshot(None)

    @contextmanager
    def changing(self, domain: str) -> Iterator[AliasSnapshot]:
        yield self.aliases(domain)

    def replace(self, domain: str, before: AliasSnapshot, content: bytes) -> None:
        marked = orjson.dumps({**orjson.loads(content), "change": uuid.uuid4().hex})  # makes each write's tag unique
        try:
            self.storage.write(ALIASES + domain, marked, over=before.tag, new=before.tag is None)
        except PreconditionFailed as error:
            raise Conflict(f"the aliases of {domain!r} changed meanwhile; read them again, then retry") from error

    def announce(self, domain: str) -> None:
        while True:
            with contextlib.suppress(PreconditionFailed):  # another process announced at the same nanosecond
                # Unique content: if the reply to a write is lost, `write` tries again, finds that the object exists,
                # and recognizes its own content.
                self.storage.write(f"{CHANGES}{time.time_ns():020d}-{domain}", uuid.uuid4().bytes, new=True)
                break
        self.storage.write(BELL, uuid.uuid4().bytes)  # last: a reader of the new value must find the announcement

    def bell(self) -> str | None:
        try:
            return self.storage.tag(BELL)
        except FileNotFoundError:  # no announcement yet; older releases do not write this object
            return None

    def announced(self) -> Iterable[str]:
        since = time.time_ns() - int(OVERLAP * 1e9)
        for entry in self.storage.list(CHANGES, f"{CHANGES}{since:020d}"):
            yield entry.key.removeprefix(CHANGES)

    def stamps(self, domains: Mapping[str, frozenset[int]]) -> dict[str, Hashable]:
        """The ETag of each domain's aliases. A deletion of a version changes the ETag too, because it replaces the
        aliases. A few ETags are requested one by one. For many domains, a listing is cheaper."""
        if len(domains) <= LISTING * self._pages:
            with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
                return dict(zip(domains, pool.map(self._tag, domains), strict=True))
        tags = {entry.key.removeprefix(ALIASES): entry.etag for entry in self.storage.list(ALIASES)}
        self._pages = 1 + len(tags) // BATCH
        return {domain: tags.get(domain) for domain in domains}

    def _tag(self, domain: str) -> str | None:
        try:
            return self.storage.tag(ALIASES + domain)
        except FileNotFoundError:
            return None

    def missing(self, domain: str, versions: Iterable[int]) -> set[int]:
        return set(versions) - set(self.versions(domain))

    def sweep(self, domain: str) -> None:
        """Removes announcements that all readers have seen. Unfinished uploads are kept, because another process may be
        writing them; `garbage` finds the old ones."""
        self.storage.delete([entry.key for entry in self._old_news(ANNOUNCED)])

    def _old_news(self, age: float) -> Iterator[Entry]:
        before = f"{CHANGES}{time.time_ns() - int(max(age, ANNOUNCED) * 1e9):020d}"
        return takewhile(lambda entry: entry.key < before, self.storage.list(CHANGES))

    def garbage(self, age: float) -> Iterator[Garbage]:
        keys = [entry.key for entry in self._old_news(age)]
        if keys:
            yield Garbage(CHANGES, f"{len(keys)} announcements", 0, partial(self.storage.delete, keys))
        # Uploads are listed first, then manifests. If an upload is published in between, its manifest is in the second
        # list, so the upload does not count as garbage.
        uploads = {name: list(files) for name, files in groupby(self.storage.list(FILES), upload_of)}
        manifests = [
            (domain, list(group)) for domain, group in groupby(self.storage.list(MANIFESTS), lambda e: split(e)[0])
        ]
        for domain, entries in manifests:
            entries.sort(key=lambda entry: split(entry)[1])
            for entry in entries:
                if entry.size:
                    with contextlib.suppress(FileNotFoundError):  # deleted meanwhile, together with its files
                        uploads.pop(self._files(domain, self.manifest(domain, split(entry)[1])), None)
                elif entry is not entries[-1] and old(entry, age):
                    why = "placeholder for the number of a deleted version"
                    yield Garbage(self.where(*split(entry)), why, 0, partial(self.storage.delete, [entry.key]))
        for name, files in uploads.items():
            if all(old(file, age) for file in files):
                keys = [file.key for file in files]
                size = sum(file.size for file in files)
                yield Garbage(
                    f"{self.storage.address}/{name}", "left unfinished", size, partial(self.storage.delete, keys)
                )


def old(entry: Entry, age: float) -> bool:
    return (datetime.now(UTC) - entry.modified).total_seconds() > age


def upload_of(entry: Entry) -> str:
    """Key of one file of a version -> common prefix of all its files."""
    return entry.key.rpartition("/")[0] + "/"


def split(entry: Entry) -> tuple[str, int]:
    """Key of a manifest -> domain and version."""
    domain, _, version = entry.key.removeprefix(MANIFESTS).rpartition("!")
    return domain, int(version)
