"""Domains in the model store, which is a folder or a bucket: versions and aliases, and the rules by which they change.

Servers with different encoders can share a store, because each encoder has its own aliases. They are stored under the
encoder's digest.
"""

import contextlib
import logging
import re
import shutil
import time
import zipfile
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import safetensors.numpy
from safetensors import SafetensorError

from isosim.arrays import Weights
from isosim.domains.folders import AliasSnapshot, Claim, FolderStorage, VersionStorage
from isosim.domains.objects import BucketStorage
from isosim.errors import Conflict, CorruptArtifact, InvalidInput, NotFound, Unavailable, UnknownDomain
from isosim.scoring.advice import Target, targets_in, unknown_threshold
from isosim.scoring.calibration import DOMAIN_NAME, DomainModel
from isosim.scoring.registry import DEFAULT
from isosim.store.artifacts import json_bytes, parsed, superfluous, verified, write_json
from isosim.store.object_storage import opened, remote
from isosim.wording import version_name

log = logging.getLogger(__name__)

T = TypeVar("T")

WEIGHTS, REPORT = "weights.safetensors", "report.json"
PART = ".npz"  # suffix of the files with the parts of the domain model
FORMAT = 1  # number of the format of a version's files; increased if older releases would misread the new format
NAME = re.compile(DOMAIN_NAME)
ALIASES = ("champion", "previous")
SIDE_BY_SIDE = 16  # domains that are read from object storage in parallel; chosen without a measurement
MOST_TARGETS = 50  # maximum number of saved thresholds per domain
ATTEMPTS = 5  # maximum attempts to replace aliases that other processes change at the same time
MOST_LISTED = 20  # a message lists at most this many versions, the newest
REMEDY = "delete it and promote a version"  # appended to errors about an invalid aliases.json


@dataclass(frozen=True)
class Aliases:
    """Champion and previous version of a domain for one encoder. `revision` counts the changes for all encoders."""

    champion: int | None = None
    previous: int | None = None
    revision: int = 0
    rolled_back: bool = field(default=False, compare=False)  # whether the last change was a rollback
    # Saved thresholds by name; the same for all encoders.
    targets: Mapping[str, Target] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Start:
    """The state of a domain as an API client last read it. A field is None if the client did not send it."""

    version: int | None = None  # the champion; 0 if there was none
    revision: int | None = None

    def check(self, domain: str, found: Aliases) -> None:
        """Raises Conflict if the domain has changed since the client read it."""
        champion = found.champion or 0
        if self.version is not None and self.version != champion:
            now = f"version {champion}" if champion else "no stored version"
            raise Conflict(
                f"from: {domain!r} now uses {now}, not version {self.version} as the request states; "
                "read the domain again, then retry"
            )
        if self.revision is not None and self.revision != found.revision:
            raise Conflict(
                f"revision: the aliases of {domain!r} are at revision {found.revision}, not {self.revision}; "
                "read the domain again, then retry"
            )


@dataclass(frozen=True)
class StoredVersion:
    """A version that was read and verified. `weights` is None for the method `identity`."""

    manifest: dict[str, Any]
    weights: Weights | None
    model: DomainModel

    @property
    def size(self) -> int:
        """Bytes of all arrays."""
        arrays = [*(self.weights or {}).values(), *(a for part in self.model.arrays().values() for a in part.values())]
        return sum(array.nbytes for array in arrays)


def read_version(folder: Path, called: str | None = None) -> StoredVersion:
    """Reads a version from its folder. Raises CorruptArtifact, which names the file that does not match its hash.

    `called`: the version's name in messages; its folder by default.
    """
    manifest = verified(folder, called=called)
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
        raise CorruptArtifact(f"{called or folder} cannot be read: {error}") from error
    return StoredVersion(manifest, weights, model)


def understood(named: object) -> bool:
    """Whether `named` is a valid entry for the aliases of one encoder."""
    return isinstance(named, dict) and all(named.get(n) is None or type(named[n]) is int for n in ALIASES)


class DomainStore:
    """The domains of a folder or of a bucket (s3://bucket/prefix)."""

    def __init__(self, root: Path) -> None:
        self.root = root / "domains"
        self.heard: str | None = None  # last result of `bell`
        self.storage: VersionStorage = BucketStorage(opened(root)) if remote(root) else FolderStorage(self.root)

    @property
    def distant(self) -> bool:
        """Whether every access is a request over the network."""
        return not self.storage.exclusive

    def prepare(self) -> None:
        """Creates the folder, or checks that the bucket can be reached."""
        self.storage.prepare()

    def checked(self, domain: str) -> str:
        """Checks a domain's name before it becomes part of a path or key. Returns the name unchanged.

        Raises:
            InvalidInput: the name breaks the rule for names.
        """
        if not NAME.fullmatch(domain):
            raise InvalidInput(
                f"domain {domain[:80]!r}: a name has 1 to 64 of a-z, 0-9, '.', '_', '-' and starts with a letter or "
                "digit"
            )
        return domain

    def domains(self) -> list[str]:
        """Sorted names of all domains that have a version."""
        return list(self.names())

    def read_each(self, domains: Sequence[str], read: Callable[[str], T]) -> list[T]:
        """The result of `read` for each domain, in order. From object storage, domains are read in parallel."""
        if not self.distant:
            return [read(domain) for domain in domains]
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            return list(pool.map(read, domains))

    def names(
        self, after: str = "", contains: str = "", wanted: Callable[[str], bool] = lambda _: True
    ) -> Iterator[str]:
        """Yields the sorted names of domains that have a version. Each name sorts after `after` and contains the text
        `contains`, and `wanted` returns True for it.

        Each name is tested only when the iteration reaches it.
        """
        return self.storage.names(after, contains, lambda name: NAME.fullmatch(name) is not None and wanted(name))

    def bell(self) -> str | None:
        """A value that changes with every announcement; None if callers must list the announcements instead."""
        self.heard = self.storage.bell()
        return self.heard

    def announced(self) -> Iterable[str]:
        """Recent announcements of changes (`<ns>-<domain>`). See `ChangeWatch`."""
        return self.storage.announced()

    def stamps(self, domains: Mapping[str, frozenset[int]]) -> dict[str, Hashable]:
        """Domain -> a value that changes when the domain's aliases are replaced or a given version is deleted.

        Args:
            domains: domain -> versions.

        Raises:
            OSError: the volume is not reachable. Without this error, all domains would seem to be deleted.
        """
        return self.storage.stamps({self.checked(domain): versions for domain, versions in domains.items()})

    def missing(self, domain: str, versions: Iterable[int]) -> set[int]:
        """Returns which of the versions are deleted. Raises OSError if the volume is not reachable."""
        return self.storage.missing(self.checked(domain), versions)

    def versions(self, domain: str) -> list[int]:
        """Existing versions in ascending order."""
        return self.storage.versions(self.checked(domain))

    def manifest(self, domain: str, version: int) -> dict[str, Any]:
        """The manifest of a version.

        Raises:
            NotFound: there is no such version.
            CorruptArtifact: the manifest is invalid or belongs to another version.
            Unavailable: a newer release wrote the version.
        """
        where = version_name(self.checked(domain), version)
        try:
            manifest = self.storage.manifest(domain, version)
        except FileNotFoundError:
            raise self._no_version(domain, version) from None
        encoder = manifest.get("encoder")
        if not isinstance(encoder, dict) or not {"id", "digest"} <= encoder.keys():
            raise CorruptArtifact(f"manifest.json of {where} names no encoder")
        if not {"method", "created", "files"} <= manifest.keys():
            raise CorruptArtifact(f"manifest.json of {where} lacks method, created or files")
        if (manifest.get("domain"), manifest.get("version")) != (domain, version):
            raise CorruptArtifact(
                f"manifest.json of {where} belongs to version {manifest.get('version')} of {manifest.get('domain')!r}"
            )
        if manifest.get("format", FORMAT) not in range(1, FORMAT + 1):
            raise Unavailable(
                f"{where} was written by a newer release (format {manifest['format']}, this one reads {FORMAT}); "
                "run that release, or promote an older version"
            )
        return manifest

    def _no_version(self, domain: str, version: int) -> NotFound:
        """The error for a version that does not exist. Returns UnknownDomain if the domain has no version at all."""
        there = self.versions(domain)
        if not there and domain != DEFAULT:
            return UnknownDomain(domain)
        newest = ["…"] * (len(there) > MOST_LISTED) + [str(one) for one in there[-MOST_LISTED:]]
        listed = ", ".join(newest) if there else "no stored version"
        return NotFound(f"domain {domain!r} has no version {version}; it has {listed}")

    def made_by(self, domain: str, job: str) -> int | None:
        """The version that a calibration job has published; None if it has published none."""
        for version in reversed(self.versions(domain)):
            with contextlib.suppress(NotFound, Unavailable):  # deleted meanwhile, or written by a newer release
                if self.manifest(domain, version).get("job") == job:
                    return version
        return None

    def report(self, domain: str, version: int) -> dict[str, Any]:
        self.manifest(domain, version)
        try:
            return parsed(self.storage.read(domain, version, REPORT), f"{REPORT} of {version_name(domain, version)}")
        except FileNotFoundError:  # deleted meanwhile
            raise self._no_version(domain, version) from None

    def load(self, domain: str, version: int) -> StoredVersion:
        """Reads a version. Raises NotFound, or CorruptArtifact, which names the file that does not match its hash."""
        return self._read(domain, version, lambda folder: read_version(folder, version_name(domain, version)))

    def contents(self, domain: str, version: int) -> tuple[dict[str, Any], dict[str, bytes]]:
        """A version's manifest and its files by name, verified as in `load`.

        Raises:
            NotFound: there is no such version.
            CorruptArtifact: a file does not match its manifest, or cannot be read.
        """

        def read(folder: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
            manifest = read_version(folder, version_name(domain, version)).manifest
            return manifest, {name: (folder / name).read_bytes() for name in sorted(manifest["files"])}

        return self._read(domain, version, read)

    def _read(self, domain: str, version: int, read: Callable[[Path], T]) -> T:
        manifest = self.manifest(domain, version)
        try:
            with self.storage.files(domain, version, manifest) as folder:
                return read(folder)
        except (FileNotFoundError, CorruptArtifact):
            self.manifest(domain, version)  # raises NotFound if the version was deleted meanwhile
            raise

    def publish(
        self,
        domain: str,
        manifest: Mapping[str, object],
        report: Mapping[str, object],
        weights: Weights | None,
        model: DomainModel,
        *,
        generation: int | None = None,
        claim: Claim = lambda _: None,
    ) -> int:
        """Publishes a new version and returns its number. An incomplete version is never visible.

        Args:
            generation: result of `generation` before the work on the version began. None skips the check.
            claim: called with the version's number before it is published; if it raises an error, nothing is published.

        Raises:
            Conflict: the domain was deleted after the work had begun.
        """
        with self.storage.building(self.checked(domain)) as folder:
            if weights is not None:
                # On a full disk, `write_bytes` raises OSError. `save_file` would raise another error.
                (folder / WEIGHTS).write_bytes(safetensors.numpy.save(weights))
            for name, arrays in model.arrays().items():
                np.savez(folder / (name + PART), allow_pickle=False, **arrays)
            write_json(folder / REPORT, report)
            created = datetime.now(UTC).isoformat()
            facts = {**manifest, "format": FORMAT, "domain": domain, "created": created}
            if generation is None:
                return self.storage.publish(domain, folder, facts, claim)
            with self.storage.changing(domain):  # in a folder, this lock prevents a deletion until the end of the block
                self.check_generation(domain, generation)
                version = self.storage.publish(domain, folder, facts, claim)
            # A bucket has no lock, so the domain may be deleted during the publication. A deletion first increases the
            # generation, then lists and deletes the versions. If the generation has already increased, this check finds
            # the deletion. If it increases later, the deletion's list contains this version.
            if not self.storage.exclusive:
                try:
                    self.check_generation(domain, generation)
                except Conflict:
                    self.storage.bury(domain, version)
                    raise
            return version

    def adopt(
        self,
        domain: str,
        folder: Path,
        manifest: Mapping[str, object],
        least: int,
        claim: Claim = lambda _: None,
    ) -> int:
        """Publishes the files of a version that was made in another store, and returns its number in this store.

        Args:
            folder: contains the version's files and no others; the caller has verified them.
            manifest: the version's manifest without `version` and `files`.
            least: lowest number for the version. The version gets the domain's highest used number + 1, or `least` if
                that is higher.
            claim: as for `publish`; called again with the next number if another process takes the first number.
        """
        with self.storage.building(self.checked(domain)) as place:
            for file in folder.iterdir():
                shutil.copyfile(file, place / file.name)
            wanted = {**manifest, "domain": domain}
            return self.storage.publish(domain, place, wanted, claim, least)

    def retire(self, domain: str, version: int) -> None:
        """Occupies a version number, so that a stalled process cannot publish under it. Does nothing if the number is
        in use."""
        self.storage.retire(self.checked(domain), version)

    def highest(self, domain: str) -> int:
        """The highest version number ever used; 0 before the first version."""
        return self.storage.highest(self.checked(domain))

    def generation(self, domain: str) -> int:
        """How often the domain was deleted."""
        generation: int = self._aliases(domain, self.storage.aliases(self.checked(domain))).get("generation", 0)
        return generation

    def check_generation(self, domain: str, generation: int) -> None:
        """Raises Conflict if the domain was deleted after `generation` was read."""
        if self.generation(domain) != generation:
            raise Conflict(f"domain {domain!r} was deleted after this calibration began")

    def _aliases(self, domain: str, snapshot: AliasSnapshot) -> dict[str, Any]:
        if snapshot.content is None:
            return {"revision": 0, "encoders": {}}
        name = f"aliases.json of {domain!r}"
        try:
            stored = parsed(snapshot.content, name)
        except CorruptArtifact as error:
            raise CorruptArtifact(f"{error}; {REMEDY}") from error
        encoders = stored.get("encoders")
        named = encoders.values() if isinstance(encoders, dict) else [None]
        counts = (stored.get("revision"), stored.get("generation", 0))
        if not all(isinstance(count, int) for count in counts) or not all(map(understood, named)):
            raise CorruptArtifact(f"{name} has invalid values; {REMEDY}")
        return stored

    def aliases(self, domain: str, encoder: str) -> Aliases:
        return aliases_in(self._aliases(domain, self.storage.aliases(self.checked(domain))), encoder)

    def every_alias(self, domain: str) -> tuple[dict[str, Aliases], dict[str, Target]]:
        """The aliases by encoder digest, and the saved targets, which apply to all encoders."""
        stored = self._aliases(domain, self.storage.aliases(self.checked(domain)))
        return {digest: aliases_in(stored, digest) for digest in stored["encoders"]}, targets_in(
            stored.get("thresholds")
        )

    def promote(
        self, domain: str, encoder: str, version: int, *, expected: Aliases, repeatable: bool = False
    ) -> Aliases:
        """Makes a version the champion if the aliases have not changed since `expected` was read.

        Args:
            repeatable: if exactly this change was already made, returns the aliases and raises no Conflict. A client
                may then repeat a request whose reply was lost.

        Raises:
            NotFound: there is no such version.
            Conflict: the aliases have changed since `expected` was read, or the version belongs to another encoder.
        """
        if self.manifest(domain, version)["encoder"]["digest"] != encoder:
            raise Conflict(f"version {version} of {domain!r} belongs to another encoder")
        if version == expected.champion and self.aliases(domain, encoder).revision == expected.revision:
            return expected
        wanted = replace(expected, champion=version, previous=expected.champion, rolled_back=False)
        return self._change(domain, encoder, wanted, repeatable=repeatable)

    def rollback(self, domain: str, encoder: str, *, expected: Aliases, repeatable: bool = False) -> Aliases:
        """Swaps the champion and the previous version. Raises Conflict if there is no previous version. `repeatable`:
        as for `promote`."""
        if expected.previous is None:
            raise Conflict(f"domain {domain!r} has no previous version to roll back to")
        wanted = replace(expected, champion=expected.previous, previous=expected.champion, rolled_back=True)
        return self._change(domain, encoder, wanted, repeatable=repeatable)

    def _change(self, domain: str, encoder: str, wanted: Aliases, *, repeatable: bool) -> Aliases:
        try:
            return self._set(domain, encoder, wanted)
        except Conflict:
            now = self.aliases(domain, encoder)
            if repeatable and now == replace(wanted, revision=now.revision) and now.rolled_back == wanted.rolled_back:
                return now
            raise

    def _set(self, domain: str, encoder: str, wanted: Aliases) -> Aliases:
        with self.storage.changing(self.checked(domain)) as before:
            stored = self._aliases(domain, before)
            if stored["revision"] != wanted.revision:
                raise Conflict(f"the aliases of {domain!r} changed meanwhile; read them again, then retry")
            if wanted.champion is not None:
                # Raises NotFound if the version was deleted. In a bucket, a deletion may also come after this check.
                # The deletion replaces the aliases, so `_replace` below raises Conflict.
                self.manifest(domain, wanted.champion)
                if wanted.champion in stored.get("deleted", ()):
                    raise NotFound(f"version {wanted.champion} of {domain!r} is being deleted")
            stored["revision"] += 1
            named = {"champion": wanted.champion, "previous": wanted.previous}
            before_it = stored["encoders"].get(encoder, {})  # keeps fields that a newer release has added
            stored["encoders"][encoder] = before_it | named
            rollbacks = {name: pair for name, pair in rollbacks_in(stored).items() if name != encoder}
            # A rollback from version 3 to version 2 is stored as [3, 2]. The entry counts only while 3 is previous and
            # 2 is champion (see `aliases_in`): older releases change the champion and do not remove the entry.
            if wanted.rolled_back:
                rollbacks[encoder] = [wanted.previous, wanted.champion]
            stored.pop("rollbacks", None)
            if rollbacks:
                stored["rollbacks"] = rollbacks
            self._replace(domain, before, stored)
        return replace(wanted, revision=stored["revision"])

    def set_target(self, domain: str, name: str, target: Target | None, *, revision: int | None = None) -> int:
        """Saves a target under a name for all versions of the domain, or deletes it if `target` is None.

        Safe to repeat: saving the same target again changes nothing and raises no error, even with an old `revision`.
        Deleting a target again raises no error if `revision` is old.

        Returns:
            The revision of the aliases.

        Raises:
            InvalidInput: the name breaks the rule for names, or the domain already has `MOST_TARGETS` targets.
            NotFound: the domain has no version, or there is no target to delete.
            Conflict: the aliases are no longer at `revision`; or, in a bucket, other processes kept changing them.
        """
        if not NAME.fullmatch(name):
            raise InvalidInput(
                f"threshold {name[:80]!r}: a name has 1 to 64 of a-z, 0-9, '.', '_', '-' and starts with a letter or "
                "digit"
            )
        # Checked first: in a folder, `changing` creates a subfolder and a lock file even for a domain that does not
        # exist.
        check_any(domain, self.versions(domain))
        for left in reversed(range(ATTEMPTS)):
            try:
                return self._set_target(domain, name, target, revision)
            except Conflict:
                if not left or revision is not None:
                    raise
        raise AssertionError  # the last attempt returns or raises

    def _set_target(self, domain: str, name: str, target: Target | None, revision: int | None) -> int:
        with self.storage.changing(domain) as before:
            stored = self._aliases(domain, before)
            check_any(domain, set(self.versions(domain)).difference(stored.get("deleted", ())))
            now: int = stored["revision"]
            thresholds = stored.get("thresholds")
            # Entries are not parsed here. Entries of a newer release are kept, also if this release cannot parse them.
            saved = dict(thresholds) if isinstance(thresholds, dict) else {}
            if target is not None and saved.get(name) == target.facts:
                return now
            if target is None and name not in saved:
                # If `revision` is old, this may be a repeated request, and it succeeds: the first request has deleted
                # the target, but its reply was lost.
                if revision is not None and revision < now:
                    return now
                raise unknown_threshold(domain, name, saved)
            Start(revision=revision).check(domain, Aliases(revision=now))
            if target is None:
                del saved[name]
            elif name not in saved and len(saved) >= MOST_TARGETS:
                raise InvalidInput(
                    f"domain {domain!r} has {len(saved)} saved thresholds, at most {MOST_TARGETS} are kept; delete one "
                    f"first: DELETE /domains/{domain}/thresholds/{{name}}"
                )
            else:
                saved[name] = target.facts
            self._replace(domain, before, stored | {"revision": now + 1, "thresholds": saved})
        return now + 1

    def named(self, domain: str) -> set[int]:
        """Versions that are the champion or the previous champion for any encoder."""
        return named_in(self._aliases(domain, self.storage.aliases(self.checked(domain))))

    def deleted(self, domain: str, version: int) -> bool:
        """Whether this number belongs to a deleted version. In a bucket, completes an interrupted deletion first."""
        if version in self._aliases(domain, self.storage.aliases(self.checked(domain))).get("deleted", ()):
            self.storage.bury(domain, version)
        return version not in self.versions(domain) and version <= self.storage.highest(domain)

    def delete(self, domain: str, version: int) -> None:
        """Deletes a version, even if its manifest is damaged. Raises NotFound if there is no such version, and Conflict
        if it is champion or previous."""
        self._check_there(domain, version)
        with self.storage.changing(domain) as before:
            self._check_there(domain, version)
            stored = self._aliases(domain, before)
            if version in named_in(stored):
                raise Conflict(
                    f"version {version} of {domain!r} is champion or previous and cannot be deleted; "
                    "promote others first, or delete the whole domain"
                )
            self._bury(domain, [version], before, stored)

    def _check_there(self, domain: str, version: int) -> None:
        """Raises NotFound if there is no such version, Unavailable if a newer release wrote it."""
        with contextlib.suppress(CorruptArtifact):
            self.manifest(domain, version)

    def prune(self, domain: str, keep: int, spare: Collection[int] = ()) -> list[int]:
        """Deletes old versions, and the files that `VersionStorage.sweep` removes. Keeps the newest `keep` versions and
        every version that is champion or previous. Returns the deleted versions.

        Args:
            spare: old versions to keep, for example because a job needs them.
        """
        self.storage.sweep(self.checked(domain))
        with self.storage.changing(domain) as before:
            stored = self._aliases(domain, before)
            old = superfluous(self.versions(domain), keep, {*spare, *named_in(stored)})
            if old:
                self._bury(domain, old, before, stored)
        return old

    def _bury(self, domain: str, versions: list[int], before: AliasSnapshot, stored: dict[str, Any]) -> None:
        """Deletes versions and replaces the aliases. The new aliases make readers read the domain again.

        In a bucket, which has no lock, the aliases are replaced first. A concurrent promotion of these versions then
        fails. In a folder, which has a lock, the files are deleted first. On a full disk, this frees space for the new
        aliases.
        """
        stored["revision"] += 1
        if self.storage.exclusive:
            for version in versions:
                self.storage.bury(domain, version)
            try:
                self._replace(domain, before, stored)
            except OSError as error:  # only logged: the deletion itself has already succeeded
                log.warning(
                    "could not notify readers of the deletion of versions of %s (%s); "
                    "they notice it at their next full scan",
                    domain,
                    error,
                )
            return
        there = set(self.versions(domain))
        stored["deleted"] = sorted({*versions, *there.intersection(stored.get("deleted", ()))})
        self._replace(domain, before, stored)
        for version in versions:
            self.storage.bury(domain, version)

    def _replace(self, domain: str, before: AliasSnapshot, stored: Mapping[str, Any]) -> None:
        """Replaces the aliases and announces the change. If the announcement fails, readers notice the change at
        their next full scan."""
        self.storage.replace(domain, before, json_bytes(stored))
        try:
            self.storage.announce(domain)
        except OSError as error:
            log.warning(
                "could not announce a change of domain %s (%s); readers notice it at their next full scan",
                domain,
                error,
            )

    def was_there(self, domain: str) -> bool:
        """Whether the domain has, or ever had, a version or aliases."""
        return self.storage.highest(self.checked(domain)) > 0 or self.storage.aliases(domain).content is not None

    def remove(self, domain: str) -> None:
        """Deletes a domain with all its versions, even if its files are damaged. Safe to repeat.

        Version numbers are not used again: a new domain of the same name continues with the next number. The aliases
        file stays, without aliases. It counts the domain's deletions (`generation`). A calibration that began before a
        deletion can therefore not publish.

        Raises:
            Conflict: in a bucket, other processes kept changing the aliases.
        """
        for left in reversed(range(ATTEMPTS)):
            try:
                self._remove(domain)
            except Conflict:
                if not left:
                    raise
            else:
                return

    def _remove(self, domain: str) -> None:
        with self.storage.changing(self.checked(domain)) as before:
            try:
                stored = self._aliases(domain, before)
            except CorruptArtifact:
                # The damaged file does not tell the generation (how often the domain was deleted). The time in seconds
                # replaces it, because it is higher than any number of deletions. Calibrations that began earlier then
                # cannot publish.
                stored = {"revision": 0, "generation": int(time.time())}
            versions = self.versions(domain)
            # In a folder, files are deleted first. On a full disk, this frees space for the new aliases.
            if self.storage.exclusive:
                for version in versions:
                    self.storage.bury(domain, version)
            revision, generation = stored["revision"] + 1, stored.get("generation", 0) + 1
            tombstone: dict[str, Any] = {"revision": revision, "generation": generation, "encoders": {}}
            # In a bucket, the aliases are replaced first, and the versions are deleted below. Until then, the list
            # `deleted` prevents promotions of these versions.
            if versions and not self.storage.exclusive:
                tombstone["deleted"] = versions
            self._replace(domain, before, tombstone)
        if not self.storage.exclusive:
            for version in self.versions(domain):
                self.storage.bury(domain, version)


def check_any(domain: str, versions: Collection[int]) -> None:
    """Raises NotFound if the domain has no versions."""
    if not versions:
        raise NotFound(f"domain {domain!r} has no version; calibrate it first: POST /calibrate?domain={domain}")


def aliases_in(stored: Mapping[str, Any], encoder: str) -> Aliases:
    """One encoder's aliases, from the content of a domain's aliases file."""
    mine = stored["encoders"].get(encoder, {})
    champion, previous = mine.get("champion"), mine.get("previous")
    rolled_back = rollbacks_in(stored).get(encoder) == [previous, champion]
    return Aliases(champion, previous, stored["revision"], rolled_back, targets_in(stored.get("thresholds")))


def rollbacks_in(stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """The encoders whose champion was last changed by a rollback: encoder digest -> versions [from, to]."""
    rollbacks = stored.get("rollbacks")
    return rollbacks if isinstance(rollbacks, dict) else {}


def named_in(stored: Mapping[str, Any]) -> set[int]:
    """Versions that are the champion or the previous champion for any encoder, from the content of an aliases file."""
    named = (mine.get(name) for mine in stored["encoders"].values() for name in ALIASES)
    return {version for version in named if version is not None}
