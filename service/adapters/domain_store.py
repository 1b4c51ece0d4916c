"""Calibrations in the model store: `domains/<domain>/<version>/` and `aliases.json`.

Aliases are kept by encoder digest, so that fleets on different encoders share a store: each has its own champion.
"""

import contextlib
import re
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy
from safetensors import SafetensorError

from service.adapters.artifacts import building, locked, read_json, read_manifest, seal, sweep, verified, write_json
from service.core.calibration import DOMAIN_NAME
from service.core.domain_model import DomainModel
from service.core.errors import Conflict, CorruptArtifact, InvalidInput, NotFound, Unavailable

ALIASES, WEIGHTS, REPORT = "aliases.json", "weights.safetensors", "report.json"
PART = ".npz"  # a file for each part of the domain model
FORMAT = 1  # of a version's files; raise it when an older release would read them wrongly
TOMBSTONE = "deleted"  # keeps a deleted version's number from being given again
NAME = re.compile(DOMAIN_NAME)
REMEDY = "delete it and promote a version"  # an aliases.json that nobody understands
Weights = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Aliases:
    """Which versions answer for a domain, for one encoder. `revision` counts every change of the file."""

    champion: int | None = None
    previous: int | None = None
    revision: int = 0


@dataclass(frozen=True)
class StoredVersion:
    """A version read back and verified; weights are None for identity."""

    manifest: dict[str, Any]
    weights: Weights | None
    model: DomainModel

    @property
    def size(self) -> int:
        """Bytes of all arrays."""
        arrays = [*(self.weights or {}).values(), *(a for part in self.model.arrays().values() for a in part.values())]
        return sum(array.nbytes for array in arrays)


def read_version(folder: Path) -> StoredVersion:
    """Raises CorruptArtifact with the name of the file that does not match its manifest, or cannot be read."""
    manifest = verified(folder)
    weights = None
    parts: dict[str, dict[str, npt.NDArray[Any]]] = {}
    try:
        if WEIGHTS in manifest["files"]:
            weights = safetensors.numpy.load_file(folder / WEIGHTS)
        for name in DomainModel.KINDS:
            if name + PART in manifest["files"]:
                with np.load(folder / (name + PART), allow_pickle=False) as arrays:
                    parts[name] = dict(arrays)
        model = DomainModel.from_arrays(parts)
    except (SafetensorError, zipfile.BadZipFile, EOFError, ValueError, KeyError) as error:
        raise CorruptArtifact(f"{folder} cannot be read: {error}") from error
    return StoredVersion(manifest, weights, model)


def understood(named: object) -> bool:
    """Are these one encoder's aliases?"""
    known = ("champion", "previous")
    return isinstance(named, dict) and all(named.get(n) is None or type(named[n]) is int for n in known)


class DomainStore:
    def __init__(self, root: Path) -> None:
        self.root = root / "domains"
        self._prepared = False

    def prepare(self) -> None:
        """Makes the folder; from then on its absence means that the volume is away."""
        self.root.mkdir(parents=True, exist_ok=True)
        self._prepared = True

    def place(self, domain: str) -> Path:
        """The folder of a domain; no path is ever made of a name that was not checked.

        Raises:
            InvalidInput: this is no name.
        """
        if not NAME.fullmatch(domain):
            raise InvalidInput(f"domain {domain[:80]!r} is no name")
        return self.root / domain

    def domains(self) -> list[str]:
        """Names of all domains that have a version."""
        found = {f.parent.parent.name for f in self.root.glob("*/[0-9]*/manifest.json")}
        return sorted(name for name in found if NAME.fullmatch(name))

    def changes(self, domains: Collection[str]) -> dict[str, int]:
        """Of those domains that have aliases, a stamp each that differs after they changed; cheap enough to poll.

        Raises:
            OSError: the volume is away; it must not look as if all domains had been deleted.
        """
        found = {}
        for name in domains:
            with contextlib.suppress(FileNotFoundError):
                facts = (self.place(name) / ALIASES).stat()
                found[name] = hash((facts.st_mtime_ns, facts.st_ino))
        if self._prepared and not found:
            self.root.stat()
        return found

    def versions(self, domain: str) -> list[int]:
        """Existing versions, rising."""
        folders = self.place(domain).glob("[0-9]*/manifest.json")
        return sorted(int(f.parent.name) for f in folders if f.parent.name.isdigit())

    def manifest(self, domain: str, version: int) -> dict[str, Any]:
        """A version's facts.

        Raises:
            NotFound: there is no such version.
            CorruptArtifact: what is there is another version's, or not understood.
            Unavailable: a newer release wrote it.
        """
        folder = self.place(domain) / str(version)
        try:
            manifest = read_manifest(folder)
        except FileNotFoundError:
            raise NotFound(f"domain {domain!r} has no version {version}; it has {self.versions(domain)}") from None
        encoder = manifest.get("encoder")
        if not isinstance(encoder, dict) or not {"id", "digest"} <= encoder.keys():
            raise CorruptArtifact(f"manifest.json of {folder} names no encoder")
        if not {"method", "created", "files"} <= manifest.keys():
            raise CorruptArtifact(f"manifest.json of {folder} names no method, date or files")
        if (manifest.get("domain"), manifest.get("version")) != (domain, version):
            raise CorruptArtifact(f"{folder} holds version {manifest.get('version')} of {manifest.get('domain')!r}")
        if manifest.get("format", FORMAT) not in range(1, FORMAT + 1):
            raise Unavailable(
                f"{folder} was written by a newer release (format {manifest['format']}, this one reads {FORMAT}); "
                "run that release, or promote an older version"
            )
        return manifest

    def made_by(self, domain: str, job: str) -> int | None:
        """The version that a calibration job has written, if it has."""
        for version in reversed(self.versions(domain)):
            with contextlib.suppress(NotFound, Unavailable):  # deleted meanwhile, or nobody can say
                if self.manifest(domain, version).get("job") == job:
                    return version
        return None

    def report(self, domain: str, version: int) -> dict[str, Any]:
        self.manifest(domain, version)
        try:
            return read_json(self.place(domain) / str(version) / REPORT)
        except FileNotFoundError:  # deleted meanwhile
            raise NotFound(f"domain {domain!r} has no version {version}") from None

    def load(self, domain: str, version: int) -> StoredVersion:
        """Raises NotFound, or CorruptArtifact with the name of the file that does not match."""
        self.manifest(domain, version)
        try:
            return read_version(self.place(domain) / str(version))
        except (FileNotFoundError, CorruptArtifact):
            self.manifest(domain, version)  # NotFound where it was deleted meanwhile
            raise

    def publish(
        self,
        domain: str,
        manifest: Mapping[str, object],
        report: Mapping[str, object],
        weights: Weights | None,
        model: DomainModel,
    ) -> int:
        """Writes a new version and returns its number; nothing half-written is ever visible."""
        place = self.place(domain)
        with building(place) as folder:
            if weights is not None:
                (folder / WEIGHTS).write_bytes(safetensors.numpy.save(weights))  # its own writer raises no OSError
            for name, arrays in model.arrays().items():
                np.savez(folder / (name + PART), allow_pickle=False, **arrays)
            write_json(folder / REPORT, report)
            while True:
                taken = [int(f.name) for f in place.iterdir() if f.name.isdigit()]
                version = max(taken, default=0) + 1
                created = datetime.now(UTC).isoformat()
                facts = {**manifest, "format": FORMAT, "domain": domain, "version": version, "created": created}
                try:
                    seal(folder, place / str(version), facts)
                except FileExistsError:  # another worker took the number
                    (folder / "manifest.json").unlink()
                    continue
                return version

    def _aliases(self, domain: str) -> dict[str, Any]:
        try:
            stored = read_json(self.place(domain) / ALIASES)
        except FileNotFoundError:
            return {"revision": 0, "encoders": {}}
        except CorruptArtifact as error:
            raise CorruptArtifact(f"{error}; {REMEDY}") from error
        encoders = stored.get("encoders")
        named = encoders.values() if isinstance(encoders, dict) else [None]
        if not isinstance(stored.get("revision"), int) or not all(map(understood, named)):
            raise CorruptArtifact(f"{self.place(domain) / ALIASES} is not understood; delete it and promote a version")
        return stored

    def aliases(self, domain: str, encoder: str) -> Aliases:
        stored = self._aliases(domain)
        mine = stored["encoders"].get(encoder, {})
        return Aliases(mine.get("champion"), mine.get("previous"), stored["revision"])

    def promote(self, domain: str, encoder: str, version: int, *, expected: Aliases) -> Aliases:
        """Makes a version the champion, if nothing has changed since `expected` was read.

        Raises:
            NotFound: no such version.
            Conflict: somebody else changed the aliases first, or the version belongs to another encoder.
        """
        if self.manifest(domain, version)["encoder"]["digest"] != encoder:
            raise Conflict(f"version {version} of {domain!r} belongs to another encoder")
        if version == expected.champion and self.aliases(domain, encoder).revision == expected.revision:
            return expected
        return self._set(domain, encoder, replace(expected, champion=version, previous=expected.champion))

    def rollback(self, domain: str, encoder: str, *, expected: Aliases) -> Aliases:
        """Swaps champion and previous."""
        if expected.previous is None:
            raise Conflict(f"domain {domain!r} has no previous version to roll back to")
        swapped = replace(expected, champion=expected.previous, previous=expected.champion)
        return self._set(domain, encoder, swapped)

    def _set(self, domain: str, encoder: str, wanted: Aliases) -> Aliases:
        with locked(self.place(domain) / ".lock"):
            stored = self._aliases(domain)
            if stored["revision"] != wanted.revision:
                raise Conflict(f"the aliases of {domain!r} changed meanwhile; look and try again")
            if wanted.champion is not None:
                self.manifest(domain, wanted.champion)
            stored["revision"] += 1
            stored["encoders"][encoder] = {"champion": wanted.champion, "previous": wanted.previous}
            write_json(self.place(domain) / ALIASES, stored)
        return replace(wanted, revision=stored["revision"])

    def named(self, domain: str) -> set[int]:
        """Versions that are champion or previous for any encoder."""
        return {v for mine in self._aliases(domain)["encoders"].values() for v in mine.values() if v is not None}

    def delete(self, domain: str, version: int) -> None:
        """Raises NotFound; Conflict for a version that an alias names."""
        self.manifest(domain, version)
        with locked(self.place(domain) / ".lock"):
            self.manifest(domain, version)
            if version in self.named(domain):
                raise Conflict(f"version {version} of {domain!r} is champion or previous and cannot be deleted")
            self._bury(domain, version)

    def _bury(self, domain: str, version: int) -> None:
        folder = self.place(domain) / str(version)
        (folder / "manifest.json").unlink()  # first: from here on the version is not there
        (folder / TOMBSTONE).touch()
        for file in folder.iterdir():
            if file.name != TOMBSTONE:
                file.unlink()

    def prune(self, domain: str, keep: int) -> list[int]:
        """Deletes all but the newest `keep` versions, never a champion or previous, and what killed workers left."""
        sweep(*(self.place(domain)).glob(".building-*"))
        with locked(self.place(domain) / ".lock"):
            named = self.named(domain)
            old = [v for v in self.versions(domain)[:-keep] if v not in named]
            for version in old:
                self._bury(domain, version)
        return old
