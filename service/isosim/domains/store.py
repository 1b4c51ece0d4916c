"""Domains in the store: one record each, changed by compare-and-swap, and sealed files of versions beside them.

    domains/<name>.json                  the record (`Domain`), also of a deleted domain
    history/<name>/<n>.json              older entries of its history (`Block`)
    versions/<name>/<upload>/            files of a version, and manifest.json, from which `repair` rebuilds a record
    changes.json                         the last changes (`ChangeLog`)

Files are written before the record names them, and deleted after it has stopped naming them. A process that is killed
leaves files without a record at worst, which `garbage` finds.
"""

import contextlib
import hashlib
import itertools
import logging
import math
import tempfile
import time
import uuid
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from functools import partial, reduce
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import orjson
import safetensors.numpy
from safetensors import SafetensorError

from isosim.arrays import Weights
from isosim.domains.changes import ChangeLog, ChangeWatch
from isosim.domains.domain import NAME, Domain, EncoderAliases, Version, differences
from isosim.domains.history import BLOCK, RECENT, Block, Entry, author
from isosim.errors import Conflict, CorruptArtifact, InvalidInput
from isosim.scoring.advice import Target
from isosim.scoring.calibration import NAME_RULE, DomainModel
from isosim.store.artifacts import MANIFEST, Garbage, json_bytes, parsed, sha256, superfluous
from isosim.store.blobs import Blobs
from isosim.store.records import Records
from isosim.wording import version_name

log = logging.getLogger(__name__)

T = TypeVar("T")

WEIGHTS, REPORT = "weights.safetensors", "report.json"
PART = ".npz"  # suffix of the files with the parts of the domain model
SIDE_BY_SIDE = 16  # domains that are read in parallel; unmeasured


@dataclass(frozen=True)
class StoredVersion:
    """A version that was read and verified. `weights` is None for the method `identity`."""

    version: Version
    weights: Weights | None
    model: DomainModel

    @property
    def size(self) -> int:
        """Bytes of all arrays, and of the tables that the out-of-domain test makes of its own."""
        arrays = [*(self.weights or {}).values(), *(a for part in self.model.arrays().values() for a in part.values())]
        derived = 0 if self.model.domain_test is None else self.model.domain_test.derived
        return sum(array.nbytes for array in arrays) + derived


def read_parts(folder: Path, names: Collection[str], called: str) -> tuple[Weights | None, DomainModel]:
    """Reads weights and domain model out of a version's files `names`, which were verified.

    Raises:
        CorruptArtifact: an array is missing or invalid; `called` names the version in the message.
    """
    weights = None
    parts: dict[str, dict[str, npt.NDArray[Any]]] = {}
    try:
        if WEIGHTS in names:
            weights = safetensors.numpy.load_file(folder / WEIGHTS)
        for name in DomainModel.KINDS:
            if name + PART in names:
                with np.load(folder / (name + PART), allow_pickle=False) as arrays:
                    parts[name] = dict(arrays)
        return weights, DomainModel.from_arrays(parts)
    except (SafetensorError, zipfile.BadZipFile, EOFError, ValueError, KeyError) as error:
        raise CorruptArtifact(f"{called} cannot be read: {error}") from error


@contextmanager
def written(report: Mapping[str, object], weights: Weights | None, model: DomainModel) -> Iterator[Path]:
    """A temporary folder with the files of a version, for `DomainStore.publish`."""
    with tempfile.TemporaryDirectory(prefix="isosim-") as place:
        folder = Path(place)
        if weights is not None:
            # On a full disk, `write_bytes` raises OSError. `save_file` would raise another error.
            (folder / WEIGHTS).write_bytes(safetensors.numpy.save(weights))
        for name, arrays in model.arrays().items():
            np.savez(folder / (name + PART), allow_pickle=False, **arrays)
        (folder / REPORT).write_bytes(json_bytes(report))
        yield folder


class DomainStore:
    """Domains of a folder or a bucket. Thread-safe."""

    def __init__(self, blobs: Blobs) -> None:
        self.blobs = blobs
        deleted = attrgetter("deleted")
        self.records = Records(blobs, Domain, "domains/", missing=Domain(), deleted=deleted, repairable=True)
        self.blocks = Records(blobs, Block, "history/")
        self.log = ChangeLog(blobs)

    def checked(self, name: str) -> str:
        """A domain's name, unchanged. Raises InvalidInput if it breaks the rule for names."""
        if not NAME.fullmatch(name):
            raise InvalidInput(f"domain {name[:80]!r}: {NAME_RULE}")
        return name

    def names(
        self, after: str = "", contains: str = "", wanted: Callable[[str], bool] = lambda _: True
    ) -> Iterator[str]:
        """Names that are greater than `after`, contain `contains` and are `wanted`, in order of their keys. A domain
        whose last version was deleted is among them until it is deleted itself. Reads no record."""
        return (
            name for name in self.records.names(after) if contains in name and NAME.fullmatch(name) and wanted(name)
        )

    def read_each(self, names: Sequence[str], read: Callable[[str], T]) -> list[T]:
        """The result of `read` for each name, in order; several domains are read in parallel."""
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            return list(pool.map(read, names))

    def watch(self) -> ChangeWatch:
        """A new watch of changes."""
        return ChangeWatch(self.log, self.stamp)

    def stamp(self, name: str) -> str | None:
        """Returns a string that differs after each change of the domain's record; None if it has no record."""
        try:
            return self.blobs.stamp(self.records.key(self.checked(name)))
        except FileNotFoundError:
            return None

    def read(self, name: str) -> Domain:
        """The domain as it is now; one without versions if there is none. Raises CorruptArtifact."""
        try:
            return self.records.read(self.checked(name))
        except FileNotFoundError:
            return Domain()

    def change(self, name: str, step: Callable[[Domain], Domain], *, revision: int | None = None) -> Domain:
        """Replaces a domain by `step(domain)`, which is called again if another process changed it meanwhile.

        Args:
            revision: the revision that the caller has read; None skips the check. A change that is already made
                (`step` returns an equal domain) succeeds at any revision, so that a caller may repeat it.

        Raises:
            Conflict: the domain is at another revision, or others keep changing it.
            CorruptArtifact: the record is damaged.
        """
        before: list[Domain] = []

        def checked(there: Domain | None) -> Domain:
            now = there or Domain()
            before[:] = [now]
            after = step(now)
            if after == now:
                return now
            now.check_revision(name, revision)
            return self._with_history(name, now, replace(after, revision=now.revision + 1))

        after = self.records.change(self.checked(name), checked)
        if after != before[0]:
            self.log.append(name, after.revision)
            announce(name, after.history, before[0].changes)
        return after

    def _with_history(self, name: str, now: Domain, after: Domain, *more: tuple[str, str | None, Any, Any]) -> Domain:
        """Adds what has changed to the history of `after`. Entries that leave the record are written to blocks before
        that, and only entries that were in the stored record leave it. All of them leave it when a version goes: from
        then on only the blocks tell `repair` that its number is used up."""
        who, at = author.get(), datetime.now(UTC).isoformat(timespec="milliseconds")
        new = [
            Entry(number, at, after.revision, *facts, who.by, who.request, who.job)
            for number, facts in enumerate([*differences(now, after), *more], now.changes + 1)
        ]
        surplus = len(now.history) + len(new) - RECENT
        goes = now.epoch < after.epoch or not now.versions.keys() <= after.versions.keys()
        leaving = now.history if goes else now.history[:surplus] if surplus >= RECENT else ()
        for block, entries in groupby(leaving, lambda entry: (entry.number - 1) // BLOCK):
            self._keep_block(f"{name}/{block:05d}", Block(tuple(entries), after.next, after.epoch))
        return replace(after, changes=now.changes + len(new), history=(*now.history[len(leaving) :], *new))

    def _keep_block(self, key: str, more: Block) -> None:
        """Adds entries to a block. What a damaged one held is lost, and stops no change."""
        try:
            self.blocks.change(key, partial(extended, more=more))
        except CorruptArtifact as error:
            log.error("a part of the history is lost: %s", error)
            self.blocks.rebuild(key, lambda _: more)

    def history(self, name: str, before: int | None = None) -> Iterator[Entry]:
        """The changes of a domain, newest first, also of a deleted one; only those with numbers below `before`.

        Raises:
            CorruptArtifact: the record is damaged.
        """
        recent = self.read(name).history
        last = math.inf if before is None else (before - 2) // BLOCK
        blocks = (number for number in reversed(self._block_numbers(name)) if number <= last)
        older = (entry for block in blocks for entry in reversed(self._block(name, block).entries))
        # A block also has entries that are still in the record if a process was killed between the two writes.
        first = recent[0].number if recent else math.inf
        every = itertools.chain(reversed(recent), (entry for entry in older if entry.number < first))
        return (entry for entry in every if before is None or entry.number < before)

    def _block_numbers(self, name: str) -> list[int]:
        keys = (entry.key for entry in self.blobs.list(f"history/{name}/"))
        return sorted(int(number) for key in keys if (number := Path(key).stem).isdigit())

    def _block(self, name: str, number: int) -> Block:
        """One that is damaged is empty."""
        try:
            return self.blocks.read(f"{name}/{number:05d}")
        except CorruptArtifact as error:
            log.error("a part of the history of %s is lost: %s", name, error)
            return Block()

    def publish(
        self,
        name: str,
        folder: Path,
        version: Version,
        *,
        epoch: int | None = None,
        least: int = 0,
        promote: Callable[[Domain], bool] = lambda _: False,
    ) -> Version:
        """Publishes the files of a folder as a new version.

        Args:
            folder: holds the version's files and no others, except for a manifest, which is written anew: the folder
                may be that of a version of another store.
            version: its facts; `number`, `files` and `upload` are set here, and `created` if it is empty.
            epoch: the domain's epoch before the work on the version began; None skips the check.
            least: the version's number, unless the domain has used it or a higher one.
            promote: whether the version becomes the champion of its encoder in the same write. It is called with the
                domain as it is then, again if the domain has changed meanwhile.

        Returns:
            The version; the one of an earlier attempt if its job has published one before.

        Raises:
            Conflict: the domain was deleted after the work had begun.
        """
        upload = uuid.uuid4().hex
        place = self._place(self.checked(name), upload)
        names = sorted(file.name for file in folder.iterdir() if file.name != MANIFEST)
        files = {file: sha256(folder / file) for file in names}
        own = replace(version, upload=upload, files=files, number=0, created=version.created or now_in_utc())
        now = self.read(name)
        began = now.epoch if epoch is None else epoch

        def step(domain: Domain) -> Domain:
            if domain.epoch != began:
                raise Conflict(f"domain {name!r} was deleted after this calibration began")
            if domain.published_as(upload, own.job):
                return domain
            after = domain.with_version(own, least)
            return after.promoted(name, own.encoder, after.next - 1) if promote(domain) else after

        step(now)  # refuses before files are written
        if (earlier := now.published_as(upload, own.job)) is not None:
            return earlier
        for file in names:
            self.blobs.upload(place + file, folder / file)
        self._write_manifest(name, own, began)
        try:
            published = self.change(name, step).published_as(upload, own.job)
        except Conflict:
            self._drop(name, own)
            raise
        assert published is not None  # noqa: S101 - `step` has added it or found it
        if published.upload != upload:
            self._drop(name, own)
            return published
        try:
            # The number is known only now. Without it, `repair` would give the version a new number.
            self._write_manifest(name, published, began)
        except OSError as error:
            log.warning("the manifest of %s lacks its number (%s)", version_name(name, published.number), error)
        return published

    def _place(self, name: str, upload: str) -> str:
        return f"versions/{name}/{upload}/"

    def _write_manifest(self, name: str, version: Version, epoch: int) -> None:
        content = json_bytes({**asdict(version), "domain": name, "epoch": epoch})
        self.blobs.write(self._place(name, version.upload) + MANIFEST, content)

    def _drop(self, name: str, version: Version) -> None:
        """Deletes a version's files, the manifest first, so that `repair` does not find half a version."""
        place = self._place(name, version.upload)
        self.blobs.delete([place + MANIFEST])
        self.blobs.delete([place + file for file in version.files])

    def mend(self, name: str, version: Version, folder: Path) -> None:
        """Writes those files of a version again that are missing or damaged, from a folder that has them whole."""
        place = self._place(name, version.upload)
        for file, digest in version.files.items():
            with contextlib.suppress(FileNotFoundError), self.blobs.files(place, [file]) as there:
                if sha256(there / file) == digest:
                    continue
            log.warning("%s: %s was damaged, and is written again", version_name(name, version.number), file)
            self.blobs.upload(place + file, folder / file)

    @contextmanager
    def files(self, name: str, wanted: int | Version) -> Iterator[tuple[Version, Path]]:
        """A version and a folder with its verified files, for reading only, until the context ends.

        Raises:
            NotFound: there is no such version.
            CorruptArtifact: a file is missing or has another hash; the message names it.
        """
        version = self.read(name).version(name, wanted) if isinstance(wanted, int) else wanted
        number, place = version.number, self._place(name, version.upload)
        called = version_name(name, number)
        with contextlib.ExitStack() as stack:
            try:
                folder = stack.enter_context(self.blobs.files(place, version.files))
                damaged = [file for file, digest in version.files.items() if sha256(folder / file) != digest]
            except FileNotFoundError as error:
                self.read(name).version(name, number)  # raises NotFound if the version was deleted meanwhile
                told = CorruptArtifact(f"{called}: a file is missing")
                told.place = str(error)
                raise told from error
            if damaged:
                told = CorruptArtifact(f"{called}: {damaged[0]} does not match its SHA-256")
                told.place = f"{self.blobs.address}/{place}{damaged[0]}"
                raise told
            yield version, folder

    def size(self, name: str, version: Version) -> int:
        """Bytes of a version's files."""
        return sum(entry.size for entry in self.blobs.list(self._place(name, version.upload)))

    def load(self, name: str, wanted: int | Version) -> StoredVersion:
        """Reads a version. Raises NotFound, or CorruptArtifact, which names the file that is damaged."""
        with self.files(name, wanted) as (version, folder):
            return StoredVersion(version, *read_parts(folder, version.files, version_name(name, version.number)))

    def report(self, name: str, number: int) -> dict[str, Any]:
        """A version's report. Raises as `load` does."""
        version, called = self.read(name).version(name, number), f"{REPORT} of {version_name(name, number)}"
        try:
            content, _ = self.blobs.read(self._place(name, version.upload) + REPORT)
        except FileNotFoundError as error:
            self.read(name).version(name, number)  # raises NotFound if the version was deleted meanwhile
            raise CorruptArtifact(f"{called} is missing") from error
        if hashlib.sha256(content).hexdigest() != version.files.get(REPORT):
            raise CorruptArtifact(f"{called} does not match its SHA-256")
        return parsed(content, called)

    def promote(self, name: str, encoder: str, number: int, *, revision: int | None = None) -> Domain:
        """Makes a version its encoder's champion. Safe to repeat. Raises NotFound or Conflict."""
        return self.change(name, lambda domain: domain.promoted(name, encoder, number), revision=revision)

    def rollback(self, name: str, encoder: str, *, revision: int | None = None) -> Domain:
        """Swaps champion and previous version; with `revision`, safe to repeat. Raises Conflict."""
        return self.change(name, lambda domain: domain.rolled_back(name, encoder, revision), revision=revision)

    def set_target(self, name: str, saved: str, target: Target | None, *, revision: int | None = None) -> Domain:
        """Saves a target under a name, or deletes it if `target` is None. Safe to repeat.

        Raises:
            InvalidInput, NotFound: see `Domain.with_target` and `Domain.without_target`.
            Conflict: the domain is no longer at `revision`, or others keep changing it.
        """

        def step(domain: Domain) -> Domain:
            if target is None:
                return domain.without_target(name, saved, revision)
            return domain.with_target(name, saved, target)

        return self.change(name, step, revision=revision)

    def delete(self, name: str, number: int, *, revision: int | None = None) -> None:
        """Deletes a version; with `revision`, safe to repeat. Raises NotFound or Conflict: `Domain.without_version`."""
        self._delete(name, lambda _: [number], revision)

    def prune(self, name: str, keep: int, spare: Collection[int] = ()) -> list[int]:
        """Deletes all versions but the newest `keep`, those in `spare`, champions and previous versions. Returns the
        deleted numbers."""
        return self._delete(name, lambda domain: superfluous(domain.versions, keep, {*spare, *domain.named()}))

    def _delete(self, name: str, chosen: Callable[[Domain], list[int]], revision: int | None = None) -> list[int]:
        gone: list[Version] = []

        def step(domain: Domain) -> Domain:
            after = domain
            for number in chosen(domain):
                after = after.without_version(name, number, revision)
            gone[:] = [version for number, version in domain.versions.items() if number not in after.versions]
            return after

        self.change(name, step, revision=revision)
        for version in gone:
            self._drop(name, version)
        return [version.number for version in gone]

    def was_there(self, name: str) -> bool:
        """Whether there is such a domain, or was one."""
        try:
            domain = self.read(name)
        except CorruptArtifact:
            return True
        return bool(domain.revision)

    def remove(self, name: str) -> None:
        """Deletes a domain with all its versions; a damaged record is rebuilt first. Safe to repeat. Files that an
        interrupted deletion has left are `garbage`. A domain that never was is deleted too, so that a calibration that
        has begun cannot make it."""
        gone: list[Domain] = []

        def step(domain: Domain) -> Domain:
            gone[:] = [domain]
            return domain if domain.deleted else domain.emptied()

        try:
            self.change(name, step)
        except CorruptArtifact:
            self.repair(name)
            self.change(name, step)
        for version in gone[0].versions.values():
            self._drop(name, version)

    def repair(self, name: str) -> Domain:
        """Rebuilds a domain's damaged record from what can be read of it, from the manifests and the history; leaves a
        sound one as it is.

        A version whose process was killed before it wrote the number into the manifest gets a new number. If the epoch
        in the record cannot be read, versions from before a deletion are not restored, unless their files are all that
        is left of an interrupted deletion; calibrations that have begun cannot publish.

        Raises:
            Conflict: another process changed the record meanwhile.
        """
        rebuilt: list[Domain] = []

        def step(content: bytes) -> Domain:
            rebuilt[:] = [self._rebuilt(name, content)]
            return rebuilt[0]

        try:
            domain = self.records.rebuild(self.checked(name), step)
        except FileNotFoundError:
            return Domain()
        if rebuilt:
            for version in domain.versions.values():
                self._write_manifest(name, version, domain.epoch)
            self.log.append(name, domain.revision)
            announce(name, domain.history[-1:], 0)
        return domain

    def _rebuilt(self, name: str, content: bytes) -> Domain:
        """A domain out of a damaged record's content."""
        part = salvaged(self.records, content)
        older = reduce(Block.joined, (self._block(name, number) for number in self._block_numbers(name)), Block())
        manifests, unknown = self._manifests(name)
        newest = max((epoch for _, epoch, _ in manifests), default=0)
        deletions = sum(entry.what == "domain_deleted" for entry in older.entries)
        # The lost record may have the entry of one more deletion. A revision that cannot be read is replaced by the
        # time in microseconds: it is higher than any number of changes, and JavaScript can represent it.
        lost = {"epoch": max(newest, deletions + 1, older.epoch), "revision": time.time_ns() // 1000}
        domain = Domain(**lost | part)
        whole = [version for version, epoch, whole in manifests if whole and epoch == part.get("epoch", newest)]
        versions = {version.number: version for version in whole if version.number > 0}
        versions |= {version.number: version for version in domain.versions.values() if version.number > 0}
        numbers = {*versions, *(version.number for version, _, _ in manifests)}
        numbers |= {entry.after for entry in (*older.entries, *domain.history) if entry.what == "version_published"}
        # The lost record may have given a number to each manifest that has none.
        numbered = {version.upload for version in domain.versions.values()}
        unknown += sum(version.number == 0 and version.upload not in numbered for version, _, _ in manifests)
        domain = replace(
            domain,
            versions=versions,
            aliases={digest: kept_of(aliases, versions) for digest, aliases in domain.aliases.items()},
            next=max(domain.next, older.next, 1 + max(numbers, default=0)) + unknown,
            revision=domain.revision + 1,
            # Numbers of lost entries are not used again either; a revision made from the time is higher than all.
            changes=part.get("changes", domain.revision),
        )
        for version in whole:
            if version.number == 0 and domain.published_as(version.upload, version.job) is None:
                domain = domain.with_version(version)
        return self._with_history(name, domain, domain, ("repaired", None, None, None))

    def _manifests(self, name: str) -> tuple[list[tuple[Version, int, bool]], int]:
        """The domain's manifests, oldest first, and the number of those that cannot be read.

        For each, the version (its number is 0 if the manifest has none), its epoch, and whether all its files exist.
        """
        there, unreadable = [], 0
        keys = {entry.key for entry in self.blobs.list(f"versions/{name}/")}
        for key in keys:
            if not key.endswith(f"/{MANIFEST}"):
                continue
            try:
                facts = orjson.loads(self.blobs.read(key)[0])
                version = self.records.form.validate_python({"versions": {0: facts}}).versions[0]
                epoch = int(facts["epoch"])
            except FileNotFoundError:  # deleted meanwhile
                continue
            except (ValueError, KeyError, TypeError):
                unreadable += 1
                continue
            place = self._place(name, version.upload)
            whole = place + MANIFEST == key and all(place + file in keys for file in version.files)
            there.append((version, epoch, whole))
        there.sort(key=lambda one: (one[0].created, one[0].upload))
        return there, unreadable

    def garbage(self, age: float) -> Iterator[Garbage]:
        """Uploads that no record names and whose files are all older than `age` (s). Those of a damaged record stay."""
        entries = list(self.blobs.list("versions/"))  # before the records: an upload that is published since is named
        before = time.time() - age
        for name, mine in groupby(entries, lambda entry: entry.key.split("/")[1]):
            uploads = {place: list(files) for place, files in groupby(mine, lambda entry: place_of(entry.key))}
            try:
                named = {self._place(name, version.upload) for version in self.read(name).versions.values()}
            except (CorruptArtifact, InvalidInput) as error:
                log.warning("files of %s are not looked at: %s", name, error)
                continue
            for place, files in uploads.items():
                if place not in named and all(file.modified < before for file in files):
                    keys: Iterable[str] = [file.key for file in files]
                    size = sum(file.size for file in files)
                    remove = partial(self.blobs.delete, keys)
                    yield Garbage(f"{self.blobs.address}/{place}", "left unfinished", size, remove)


def now_in_utc() -> str:
    return datetime.now(UTC).isoformat()


def salvaged(records: Records[Any], content: bytes) -> dict[str, Any]:
    """Those fields of a damaged record that can be understood by themselves."""
    found: dict[str, Any] = {}
    # pydantic's ValidationError and orjson's JSONDecodeError are ValueErrors.
    with contextlib.suppress(ValueError):
        stored = orjson.loads(content)
        for one in fields(records.kind):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                alone = records.form.validate_python({one.name: stored[one.name]})
                found[one.name] = getattr(alone, one.name)
    return found


def extended(there: Block | None, more: Block) -> Block:
    return (there or Block()).joined(more)


def announce(name: str, history: Iterable[Entry], seen: int) -> None:
    """Logs the entries of a domain's history whose numbers are above `seen`."""
    for entry in history:
        if entry.number > seen:
            facts = {key: value for key, value in entry.facts.items() if key != "time"}  # the line has its own
            log.info("domain changed", extra={"facts": {"domain": name, **facts}})


def kept_of(aliases: EncoderAliases, versions: Collection[int]) -> EncoderAliases:
    """Aliases without versions that are gone."""
    champion = aliases.champion if aliases.champion in versions else None
    previous = aliases.previous if aliases.previous in versions else None
    return replace(aliases, champion=champion, previous=previous)


def place_of(key: str) -> str:
    """Key of a version's file -> common prefix of all its files."""
    return key.rpartition("/")[0] + "/"
