"""Calibrations in the model store: versions, aliases, and the rules by which they change, wherever they are kept.

Aliases are kept by encoder digest, so that fleets on different encoders share a store: each has its own champion.
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

from service.adapters.domains.folders import AliasSnapshot, Claim, FolderStorage, VersionStorage
from service.adapters.domains.objects import BucketStorage
from service.adapters.storage.artifacts import json_bytes, parsed, superfluous, verified, write_json
from service.adapters.storage.object_storage import opened, remote
from service.core.arrays import Weights
from service.core.errors import Conflict, CorruptArtifact, InvalidInput, NotFound, Unavailable, UnknownDomain
from service.core.scoring.advice import Target, targets_in, unknown_threshold
from service.core.scoring.calibration import DOMAIN_NAME, DomainModel
from service.core.scoring.registry import DEFAULT

log = logging.getLogger(__name__)

T = TypeVar("T")

WEIGHTS, REPORT = "weights.safetensors", "report.json"
PART = ".npz"  # a file for each part of the domain model
FORMAT = 1  # of a version's files; raise it when an older release would read them wrongly
NAME = re.compile(DOMAIN_NAME)
ALIASES = ("champion", "previous")
SIDE_BY_SIDE = 16  # domains of object storage read at a time; unmeasured
MOST_TARGETS = 50  # saved for a domain
ATTEMPTS = 5  # to replace aliases that other processes change, too
MOST_LISTED = 20  # versions in a message, the newest
REMEDY = "delete it and promote a version"  # for aliases that cannot be understood


@dataclass(frozen=True)
class Aliases:
    """Which versions answer for a domain, for one encoder. `revision` counts every change of the file."""

    champion: int | None = None
    previous: int | None = None
    revision: int = 0
    rolled_back: bool = field(default=False, compare=False)  # the champion was reached by a rollback from `previous`
    targets: Mapping[str, Target] = field(
        default_factory=dict, compare=False
    )  # saved, by name; the same for all encoders


@dataclass(frozen=True)
class Start:
    """The state of a domain that a caller saw before it asked for a change; None where it does not say."""

    version: int | None = None  # the champion; 0 is the built-in one of `default`
    revision: int | None = None

    def check(self, domain: str, found: Aliases) -> None:
        """Raises Conflict where the domain has changed since the caller looked."""
        champion = found.champion or 0
        if self.version is not None and self.version != champion:
            now = f"version {champion}" if champion else "no stored version"
            raise Conflict(f"from: {now} answers for {domain!r} now, not version {self.version}; look and try again")
        if self.revision is not None and self.revision != found.revision:
            raise Conflict(
                f"revision: the aliases of {domain!r} are at revision {found.revision}, not {self.revision}; "
                "look and try again"
            )


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
    return isinstance(named, dict) and all(named.get(n) is None or type(named[n]) is int for n in ALIASES)


class DomainStore:
    """A folder's domains, or a bucket's (s3://bucket/prefix)."""

    def __init__(self, root: Path) -> None:
        self.root = root / "domains"
        self.heard: str | None = None  # the bell, when it was asked for last
        self.storage: VersionStorage = BucketStorage(opened(root)) if remote(root) else FolderStorage(self.root)

    @property
    def distant(self) -> bool:
        """Whether every look at it is a request over the network."""
        return not self.storage.exclusive

    def prepare(self) -> None:
        """Makes the folder; from then on its absence means that the volume is away."""
        self.storage.prepare()

    def checked(self, domain: str) -> str:
        """No path and no key is ever made of a name that was not checked.

        Raises:
            InvalidInput: this is no name.
        """
        if not NAME.fullmatch(domain):
            raise InvalidInput(f"domain {domain[:80]!r} is no name")
        return domain

    def domains(self) -> list[str]:
        """Names of all domains that have a version."""
        return list(self.names())

    def read_each(self, domains: Sequence[str], read: Callable[[str], T]) -> list[T]:
        """`read` of each domain, in order; some at a time where each is a request to object storage."""
        if not self.distant:
            return [read(domain) for domain in domains]
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            return list(pool.map(read, domains))

    def names(
        self, after: str = "", contains: str = "", wanted: Callable[[str], bool] = lambda _: True
    ) -> Iterator[str]:
        """The same one by one, sorted, after a name; the store is asked about those wanted, when they are asked for."""
        return self.storage.names(after, contains, lambda name: NAME.fullmatch(name) is not None and wanted(name))

    def bell(self) -> str | None:
        """A value that differs after an announcement; None: one must look at the announcements themselves."""
        self.heard = self.storage.bell()
        return self.heard

    def announced(self) -> Iterable[str]:
        """Announcements of changes, `<ns>-<domain>`, that readers may not have seen (see `ChangeWatch`)."""
        return self.storage.announced()

    def stamps(self, domains: Mapping[str, frozenset[int]]) -> dict[str, Hashable]:
        """For each domain a value that differs after its aliases were replaced or one of these versions was deleted.

        Raises:
            OSError: the volume is away; it must not look as if every domain had been deleted.
        """
        return self.storage.stamps({self.checked(domain): versions for domain, versions in domains.items()})

    def missing(self, domain: str, versions: Iterable[int]) -> set[int]:
        """Those of the versions that were deleted. Raises OSError where the volume is away."""
        return self.storage.missing(self.checked(domain), versions)

    def versions(self, domain: str) -> list[int]:
        """Existing versions, rising."""
        return self.storage.versions(self.checked(domain))

    def manifest(self, domain: str, version: int) -> dict[str, Any]:
        """A version's facts.

        Raises:
            NotFound: there is no such version.
            CorruptArtifact: what is there is another version's, or not understood.
            Unavailable: a newer release wrote it.
        """
        where = self.storage.where(self.checked(domain), version)
        try:
            manifest = self.storage.manifest(domain, version)
        except FileNotFoundError:
            raise self._no_version(domain, version) from None
        encoder = manifest.get("encoder")
        if not isinstance(encoder, dict) or not {"id", "digest"} <= encoder.keys():
            raise CorruptArtifact(f"manifest.json of {where} names no encoder")
        if not {"method", "created", "files"} <= manifest.keys():
            raise CorruptArtifact(f"manifest.json of {where} names no method, date or files")
        if (manifest.get("domain"), manifest.get("version")) != (domain, version):
            raise CorruptArtifact(f"{where} holds version {manifest.get('version')} of {manifest.get('domain')!r}")
        if manifest.get("format", FORMAT) not in range(1, FORMAT + 1):
            raise Unavailable(
                f"{where} was written by a newer release (format {manifest['format']}, this one reads {FORMAT}); "
                "run that release, or promote an older version"
            )
        return manifest

    def _no_version(self, domain: str, version: int) -> NotFound:
        """The refusal of a version that is not there, or of a domain that has none."""
        there = self.versions(domain)
        if not there and domain != DEFAULT:
            return UnknownDomain(domain)
        newest = ["…"] * (len(there) > MOST_LISTED) + [str(one) for one in there[-MOST_LISTED:]]
        listed = ", ".join(newest) if there else "no stored version"
        return NotFound(f"domain {domain!r} has no version {version}; it has {listed}")

    def made_by(self, domain: str, job: str) -> int | None:
        """The version that a calibration job has written, if it has."""
        for version in reversed(self.versions(domain)):
            with contextlib.suppress(NotFound, Unavailable):  # deleted meanwhile, or not readable
                if self.manifest(domain, version).get("job") == job:
                    return version
        return None

    def report(self, domain: str, version: int) -> dict[str, Any]:
        self.manifest(domain, version)
        try:
            return parsed(
                self.storage.read(domain, version, REPORT), f"{REPORT} of {self.storage.where(domain, version)}"
            )
        except FileNotFoundError:  # deleted meanwhile
            raise self._no_version(domain, version) from None

    def load(self, domain: str, version: int) -> StoredVersion:
        """Raises NotFound, or CorruptArtifact with the name of the file that does not match."""
        return self._read(domain, version, read_version)

    def contents(self, domain: str, version: int) -> tuple[dict[str, Any], dict[str, bytes]]:
        """A version's manifest and its files by name, verified as `load` does.

        Raises:
            NotFound: there is no such version.
            CorruptArtifact: a file does not match its manifest, or cannot be read.
        """

        def read(folder: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
            manifest = read_version(folder).manifest
            return manifest, {name: (folder / name).read_bytes() for name in sorted(manifest["files"])}

        return self._read(domain, version, read)

    def _read(self, domain: str, version: int, read: Callable[[Path], T]) -> T:
        manifest = self.manifest(domain, version)
        try:
            with self.storage.files(domain, version, manifest) as folder:
                return read(folder)
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
        *,
        generation: int | None = None,
        claim: Claim = lambda _: None,
    ) -> int:
        """Writes a new version and returns its number; nothing half-written is ever visible.

        Args:
            generation: the domain's when the work on the version began; None publishes into any.
            claim: called with the number that the version is about to get; what it raises ends the publication.

        Raises:
            Conflict: the domain was deleted since then.
        """
        with self.storage.building(self.checked(domain)) as folder:
            if weights is not None:
                (folder / WEIGHTS).write_bytes(safetensors.numpy.save(weights))  # its own writer raises no OSError
            for name, arrays in model.arrays().items():
                np.savez(folder / (name + PART), allow_pickle=False, **arrays)
            write_json(folder / REPORT, report)
            created = datetime.now(UTC).isoformat()
            facts = {**manifest, "format": FORMAT, "domain": domain, "created": created}
            if generation is None:
                return self.storage.publish(domain, folder, facts, claim)
            with self.storage.changing(domain):  # no deletion in a folder until it is published
                self.check_generation(domain, generation)
                version = self.storage.publish(domain, folder, facts, claim)
            if not self.storage.exclusive:  # a deletion replaced the aliases before it listed the versions to delete
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
        """Publishes the files of a version that was made elsewhere, and returns its number here.

        Args:
            folder: its files and nothing else; the caller has read them.
            manifest: its facts, without those that follow from its place here.
            least: the number it gets where all numbers from there on are free.
            claim: as for `publish`; called again where another process took the number.
        """
        with self.storage.building(self.checked(domain)) as place:
            for file in folder.iterdir():
                shutil.copyfile(file, place / file.name)
            wanted = {**manifest, "domain": domain}
            return self.storage.publish(domain, place, wanted, claim, least)

    def retire(self, domain: str, version: int) -> None:
        """Takes a number under which a stalled process may yet publish; does nothing where it is taken."""
        self.storage.retire(self.checked(domain), version)

    def highest(self, domain: str) -> int:
        """The highest version number that was ever given; 0 before the first."""
        return self.storage.highest(self.checked(domain))

    def generation(self, domain: str) -> int:
        """Counts how often the domain was deleted."""
        generation: int = self._aliases(domain, self.storage.aliases(self.checked(domain))).get("generation", 0)
        return generation

    def check_generation(self, domain: str, generation: int) -> None:
        """Raises Conflict where the domain was deleted since it had this generation."""
        if self.generation(domain) != generation:
            raise Conflict(f"domain {domain!r} was deleted after this calibration began")

    def _aliases(self, domain: str, snapshot: AliasSnapshot) -> dict[str, Any]:
        if snapshot.content is None:
            return {"revision": 0, "encoders": {}}
        name = f"aliases.json of {self.storage.where(domain)}"
        try:
            stored = parsed(snapshot.content, name)
        except CorruptArtifact as error:
            raise CorruptArtifact(f"{error}; {REMEDY}") from error
        encoders = stored.get("encoders")
        named = encoders.values() if isinstance(encoders, dict) else [None]
        counts = (stored.get("revision"), stored.get("generation", 0))
        if not all(isinstance(count, int) for count in counts) or not all(map(understood, named)):
            raise CorruptArtifact(f"{name} is not understood; {REMEDY}")
        return stored

    def aliases(self, domain: str, encoder: str) -> Aliases:
        return aliases_in(self._aliases(domain, self.storage.aliases(self.checked(domain))), encoder)

    def every_alias(self, domain: str) -> tuple[dict[str, Aliases], dict[str, Target]]:
        """The aliases by encoder digest, and the saved targets, which hold for all encoders."""
        stored = self._aliases(domain, self.storage.aliases(self.checked(domain)))
        return {digest: aliases_in(stored, digest) for digest in stored["encoders"]}, targets_in(
            stored.get("thresholds")
        )

    def promote(
        self, domain: str, encoder: str, version: int, *, expected: Aliases, repeatable: bool = False
    ) -> Aliases:
        """Makes a version the champion, if nothing has changed since `expected` was read.

        repeatable: the caller may send the same change again, and is answered alike; where another call has made
        the very same change since `expected` was read, it counts as this one's.

        Raises:
            NotFound: no such version.
            Conflict: another caller changed the aliases first, or the version belongs to another encoder.
        """
        if self.manifest(domain, version)["encoder"]["digest"] != encoder:
            raise Conflict(f"version {version} of {domain!r} belongs to another encoder")
        if version == expected.champion and self.aliases(domain, encoder).revision == expected.revision:
            return expected
        wanted = replace(expected, champion=version, previous=expected.champion, rolled_back=False)
        return self._change(domain, encoder, wanted, repeatable=repeatable)

    def rollback(self, domain: str, encoder: str, *, expected: Aliases, repeatable: bool = False) -> Aliases:
        """Swaps champion and previous; `repeatable` as for `promote`."""
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
                raise Conflict(f"the aliases of {domain!r} changed meanwhile; look and try again")
            if wanted.champion is not None:
                self.manifest(domain, wanted.champion)  # after the aliases were read: see `_bury`
                if wanted.champion in stored.get("deleted", ()):
                    raise NotFound(f"version {wanted.champion} of {domain!r} is being deleted")
            stored["revision"] += 1
            named = {"champion": wanted.champion, "previous": wanted.previous}
            before_it = stored["encoders"].get(encoder, {})  # with what a newer release has written beside them
            stored["encoders"][encoder] = before_it | named
            rollbacks = {name: pair for name, pair in rollbacks_in(stored).items() if name != encoder}
            if wanted.rolled_back:  # with both versions: an older release changes the champion and leaves this as it is
                rollbacks[encoder] = [wanted.previous, wanted.champion]
            stored.pop("rollbacks", None)
            if rollbacks:
                stored["rollbacks"] = rollbacks
            self._replace(domain, before, stored)
        return replace(wanted, revision=stored["revision"])

    def set_target(self, domain: str, name: str, target: Target | None, *, revision: int | None = None) -> int:
        """Saves a target under a name for all versions of the domain, or deletes it (None).

        May be repeated: where the wanted state is there already nothing is changed, also where `revision` is the one
        from before the first call.

        Returns:
            The revision of the aliases.

        Raises:
            InvalidInput: the name breaks the rule for names, or the domain has the most targets it may have already.
            NotFound: the domain has no version, or a target that is to be deleted was not there.
            Conflict: the aliases are not at `revision` any more, or in a bucket other processes kept changing them.
        """
        if not NAME.fullmatch(name):
            raise InvalidInput(
                f"threshold {name[:80]!r}: a name has 1 to 64 of a-z, 0-9, '.', '_', '-' and starts with a letter or "
                "digit"
            )
        check_any(domain, self.versions(domain))  # before a lock file is made
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
            saved = dict(thresholds) if isinstance(thresholds, dict) else {}  # also what a newer release has saved
            if target is not None and saved.get(name) == target.facts:
                return now
            if target is None and name not in saved:
                if revision is not None and revision < now:  # an earlier call has deleted it
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
        """Versions that are champion or previous for any encoder."""
        return named_in(self._aliases(domain, self.storage.aliases(self.checked(domain))))

    def deleted(self, domain: str, version: int) -> bool:
        """Whether this number was given to a version that is gone; in a bucket a deletion that was cut off goes on."""
        if version in self._aliases(domain, self.storage.aliases(self.checked(domain))).get("deleted", ()):
            self.storage.bury(domain, version)
        return version not in self.versions(domain) and version <= self.storage.highest(domain)

    def delete(self, domain: str, version: int) -> None:
        """Also one whose manifest is damaged. Raises NotFound; Conflict for a version that an alias names."""
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
        """Raises NotFound; Unavailable where a newer release wrote it."""
        with contextlib.suppress(CorruptArtifact):
            self.manifest(domain, version)

    def prune(self, domain: str, keep: int, spare: Collection[int] = ()) -> list[int]:
        """Deletes all but the newest `keep` versions, never a champion or previous, and what is left of killed workers.

        spare: versions that must stay although they are old, for example because a job rests on them.
        """
        self.storage.sweep(self.checked(domain))
        with self.storage.changing(domain) as before:
            stored = self._aliases(domain, before)
            old = superfluous(self.versions(domain), keep, {*spare, *named_in(stored)})
            if old:
                self._bury(domain, old, before, stored)
        return old

    def _bury(self, domain: str, versions: list[int], before: AliasSnapshot, stored: dict[str, Any]) -> None:
        """Deletes versions, and replaces the aliases so that every reader looks at the domain again.

        Without a lock a deletion and a promotion meet at the aliases: one of the two replaces them, and the deletion
        does so first. Under a lock the files go first: a full disk has room for new aliases only then.
        """
        stored["revision"] += 1
        if self.storage.exclusive:
            for version in versions:
                self.storage.bury(domain, version)
            try:
                self._replace(domain, before, stored)
            except OSError as error:  # what was asked for is done
                log.warning("readers find the deletion in %s with their next full look: %s", domain, error)
            return
        there = set(self.versions(domain))
        stored["deleted"] = sorted({*versions, *there.intersection(stored.get("deleted", ()))})
        self._replace(domain, before, stored)
        for version in versions:
            self.storage.bury(domain, version)

    def _replace(self, domain: str, before: AliasSnapshot, stored: Mapping[str, Any]) -> None:
        """Replaces the aliases and announces it; without the announcement readers find it with their next full look."""
        self.storage.replace(domain, before, json_bytes(stored))
        try:
            self.storage.announce(domain)
        except OSError as error:
            log.warning("the change of %s was not announced: %s", domain, error)

    def was_there(self, domain: str) -> bool:
        """Whether the domain has or ever had a version or aliases."""
        return self.storage.highest(self.checked(domain)) > 0 or self.storage.aliases(domain).content is not None

    def remove(self, domain: str) -> None:
        """Deletes a domain with all its versions; may be repeated. Also where its files are damaged.

        The taken numbers and the aliases stay as a tombstone: a domain that is made again under the name goes on
        counting, and a calibration that began before cannot publish.

        Raises:
            Conflict: in a bucket other processes kept changing the aliases.
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
                stored = {"revision": 0, "generation": int(time.time())}  # more than any count of deletions
            versions = self.versions(domain)
            if self.storage.exclusive:  # the files first, as in `_bury`
                for version in versions:
                    self.storage.bury(domain, version)
            revision, generation = stored["revision"] + 1, stored.get("generation", 0) + 1
            tombstone: dict[str, Any] = {"revision": revision, "generation": generation, "encoders": {}}
            if versions and not self.storage.exclusive:  # no promotion until they are buried, as in `_bury`
                tombstone["deleted"] = versions
            self._replace(domain, before, tombstone)
        if not self.storage.exclusive:
            for version in self.versions(domain):
                self.storage.bury(domain, version)


def check_any(domain: str, versions: Collection[int]) -> None:
    """Raises NotFound for a domain without versions."""
    if not versions:
        raise NotFound(f"domain {domain!r} has no version; calibrate it first: POST /calibrate?domain={domain}")


def aliases_in(stored: Mapping[str, Any], encoder: str) -> Aliases:
    """One encoder's aliases, out of a domain's file."""
    mine = stored["encoders"].get(encoder, {})
    champion, previous = mine.get("champion"), mine.get("previous")
    rolled_back = rollbacks_in(stored).get(encoder) == [previous, champion]
    return Aliases(champion, previous, stored["revision"], rolled_back, targets_in(stored.get("thresholds")))


def rollbacks_in(stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """By encoder digest the two versions of its last change, where that was a rollback: from, to."""
    rollbacks = stored.get("rollbacks")
    return rollbacks if isinstance(rollbacks, dict) else {}


def named_in(stored: Mapping[str, Any]) -> set[int]:
    """Versions that aliases name."""
    named = (mine.get(name) for mine in stored["encoders"].values() for name in ALIASES)
    return {version for version in named if version is not None}
