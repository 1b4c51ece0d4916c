"""Exported encoders in object storage: `encoders/<id>/<digest>/<file>`, fetched whole into a folder of this machine."""

import contextlib
import shutil
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from pathlib import Path

from service.adapters.artifacts import MANIFEST, building, parsed_manifest, read_manifest, verified, write_atomically
from service.adapters.garbage import Garbage
from service.adapters.object_storage import Changed, ObjectStorage
from service.core.errors import CorruptArtifact, Unavailable

ENCODERS = "encoders/"


class EncoderBucket:
    """Graphs are hundreds of megabytes and are read as files: each machine keeps those it has used."""

    def __init__(self, storage: ObjectStorage, folder: Path) -> None:
        self.storage, self.folder = storage, folder

    def _manifests(self, prefix: str = "") -> list[str]:
        """Keys of manifests."""
        keys = (entry.key for entry in self.storage.list(ENCODERS + prefix))
        return [key for key in keys if key.count("/") == 3 and key.endswith(f"/{MANIFEST}")]

    def ids(self) -> list[str]:
        return sorted({key.split("/")[1] for key in self._manifests()})

    def has(self, artifact_id: str, digest: str) -> bool:
        return f"{ENCODERS}{artifact_id}/{digest}/{MANIFEST}" in self._manifests(f"{artifact_id}/{digest}/")

    def fetch(self, artifact_id: str, digest: str) -> str:
        """Puts the newest export whose digest begins so into the folder, unless it is there. -> its digest

        Raises:
            Unavailable: there is none.
            CorruptArtifact: what was fetched does not match its manifest.
            OSError: object storage does not answer, or the folder cannot be written.
        """
        read = {key: self.storage.read(key)[0] for key in self._manifests(f"{artifact_id}/{digest}")}
        if not read:
            name = f"{artifact_id}@{digest}" if digest else artifact_id
            raise Unavailable(
                f"no encoder {name!r} in {self.storage.address}; make it with: "
                f"isosim export --encoder minilm --model-store {self.storage.address}"
            )
        key = max(read, key=lambda key: str(parsed_manifest(read[key], f"{self.storage.address}/{key}").get("created")))
        found = key.split("/")[2]
        place = self.folder / ENCODERS / artifact_id / found
        if not self._is_there(place, read[key]):
            self._download(key.removesuffix(MANIFEST), place, read[key])
        return found

    def _is_there(self, place: Path, manifest: bytes) -> bool:
        try:
            verified(place)
            same = read_manifest(place) == parsed_manifest(manifest, str(place))
        except (FileNotFoundError, CorruptArtifact):
            same = False
        return same

    def _download(self, prefix: str, place: Path, manifest: bytes) -> None:
        with building(place.parent) as folder:
            for name in parsed_manifest(manifest, prefix + MANIFEST)["files"]:
                self.storage.download(prefix + name, folder / name)
            write_atomically(folder / MANIFEST, manifest)
            verified(folder)
            shutil.rmtree(place, ignore_errors=True)  # what is there was found wrong
            try:
                folder.rename(place)
            except OSError:  # another process of this machine was faster
                verified(place)

    def send(self, place: Path) -> None:
        """An export that lies in the folder; files first, the manifest last, which makes it visible."""
        prefix = f"{ENCODERS}{place.parent.name}/{place.name}/"
        manifest = read_manifest(place)
        for name in manifest["files"]:
            self.storage.upload(prefix + name, place / name)
        with contextlib.suppress(Changed):  # somebody has exported the same
            self.storage.write(prefix + MANIFEST, (place / MANIFEST).read_bytes(), new=True)

    def garbage(self, age: float, needed: Collection[str] | None) -> Iterator[Garbage]:
        """Exports that were not sent to their end; and those whose digest nobody needs, unless `needed` is None."""
        for prefix, entries in groupby(self.storage.list(ENCODERS), lambda entry: entry.key.rpartition("/")[0]):
            files = sorted(entries, key=lambda entry: not entry.key.endswith(f"/{MANIFEST}"))  # the manifest goes first
            whole = files[0].key.endswith(f"/{MANIFEST}")
            unwanted = not whole or (needed is not None and prefix.rpartition("/")[2] not in needed)
            if unwanted and all((datetime.now(UTC) - entry.modified).total_seconds() > age for entry in files):
                why = "an encoder nobody names" if whole else "left unfinished"
                size = sum(entry.size for entry in files)
                name = f"{self.storage.address}/{prefix}"
                yield Garbage(name, why, size, partial(self._bury, [entry.key for entry in files]))

    def _bury(self, keys: list[str]) -> None:
        self.storage.delete(keys[:1])
        self.storage.delete(keys[1:])
