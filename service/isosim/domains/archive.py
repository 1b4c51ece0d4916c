"""Exports domains to one file and imports them, for backups and for copies into another store.

The file is an uncompressed tar, because a small compressed file could expand to terabytes. Its members have this order:

    archive.json                        the archive's format and the release that wrote it
    <domain>/domain.json                aliases by encoder, and saved thresholds; comes before the versions
    <domain>/<version>/manifest.json    the version's manifest; comes before the other files
    <domain>/<version>/<file>           weights.safetensors, report.json, reference.npz, …

Exporting the same versions again gives the same bytes. Writing and reading hold one version in memory at a time.

An import does not trust the archive. It reads the archive twice: first it checks everything, then it adds the versions.
It checks that

- members have known names and are regular files of limited size,
- each file has the hash that its manifest states,
- arrays contain numbers and are as long as their headers say,
- each version can score random vectors, as it would in a server.
"""

import contextlib
import io
import json
import re
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from isosim import __version__
from isosim.domains.store import PART, REPORT, WEIGHTS, DomainStore, StoredVersion
from isosim.encoders.onnx_engine import OnnxCalibrator
from isosim.encoders.store import EncoderArtifact, EncoderStore
from isosim.errors import (
    Conflict,
    CorruptArtifact,
    EncoderMismatch,
    InvalidInput,
    IsosimError,
    NotFound,
    TooLarge,
    Unavailable,
    UnknownDomain,
)
from isosim.scoring.advice import targets_in
from isosim.scoring.calibration import DOMAIN_NAME, DomainModel, DomainRef
from isosim.scoring.out_of_domain import level_energies
from isosim.scoring.reference import ReferenceDistribution
from isosim.store.artifacts import MANIFEST, json_bytes, manifest_bytes, parsed, parsed_manifest, since

FORMAT = 1  # number of the archive's format; increased if older releases would misread the new format
CONTENTS, DOMAIN = "archive.json", "domain.json"
FILES = (WEIGHTS, REPORT, *(kind + PART for kind in DomainModel.KINDS))
MEMBER = re.compile(
    rf"(?P<domain>{DOMAIN_NAME})/(?:{re.escape(DOMAIN)}|(?P<version>[1-9][0-9]{{0,8}})/(?P<file>[a-z_]+\.[a-z]+))"
)
ENCODER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}@[0-9a-f]{64}")  # id@digest, which becomes part of a path
METHOD = re.compile(r"[a-z0-9_-]{1,40}")
# An imported version with a higher number than this gets a new number. Version numbers only rise, up to 999,999,999:
# after a high number, few would be left for later versions.
HIGHEST_KEPT = 1_000_000
# Maximum size of each JSON file in bytes. isosim writes at most 20 kB.
MOST_JSON = {CONTENTS: 1 << 16, DOMAIN: 1 << 18, MANIFEST: 1 << 16, REPORT: 1 << 18}
# Maximum size of a file of arrays, in bytes: curves and tables have SMALL_ARRAYS, whatever the encoder (isosim writes
# at most 30 kB); files with vectors have ROOM in addition to the size computed from the encoder's dimensions.
SMALL_ARRAYS, ROOM = 1 << 17, 1 << 20
WITH_VECTORS = ("domain_test", "normalization")
ROWS = 16  # number of random vectors that each version must be able to score
CHUNK = 1 << 20  # bytes
LEAST_ZIP, LOCATOR = 22, 20  # bytes of a zip's end record without comment, and of the zip64 locator before it
MOST_DIRECTORY = 100_000  # maximum bytes of a .npz's directory; isosim writes fewer than 1,000
# Appended to an error that names a damaged file.
REMEDY = "delete the damaged version or file, or export the other domains by name"


class AlreadyThere(Conflict):
    """Another import has just added the same version."""


@dataclass(frozen=True)
class ArchivedVersion:
    """A version read from an archive: its manifest, and the folder with its files."""

    domain: str
    number: int
    manifest: Mapping[str, Any]
    folder: Path

    @property
    def name(self) -> str:
        return f"{self.domain}@{self.number}"

    @property
    def encoder(self) -> str:
        """Digest of the version's encoder."""
        return str(self.manifest["encoder"]["digest"])


@dataclass(frozen=True)
class ImportedVersion:
    source: str  # name@version in the archive
    domain: str
    version: int  # the version's number in this store; in a dry run, the number that it would get
    encoder: str  # id
    was: str | None  # the version's alias in the exporting store: champion, previous or None
    there: bool  # True: this store already had a version with the same files, and nothing was added


@dataclass(frozen=True)
class Imported:
    """The result of an import, or the expected result after a dry run."""

    versions: list[ImportedVersion] = field(default_factory=list)
    thresholds: list[str] = field(default_factory=list)  # domain/name of each saved threshold
    # domain/name of each threshold that was not imported, because the store has another target under the same name, the
    # name is invalid, or the domain already has MOST_TARGETS saved thresholds.
    kept: list[str] = field(default_factory=list)


def selected(store: DomainStore, domain: str, encoder: str) -> tuple[str, list[int]]:
    """The name and versions that `domain` refers to: `name` means all versions of the domain; `name@3`, `name@previous`
    and `name@champion` mean one version.

    Raises:
        InvalidInput: `domain` is not a valid reference.
        NotFound: there is no such version.
    """
    ref = DomainRef.parse(domain)
    if "@" not in domain:
        versions = store.versions(ref.name)
        if not versions:
            raise UnknownDomain(ref.name)
        return ref.name, versions
    aliases = store.aliases(ref.name, encoder)
    version = {"champion": aliases.champion, "previous": aliases.previous}.get(str(ref.version), ref.version)
    if version is None:
        raise NotFound(f"domain {ref.name!r} has no {ref.version} version for this encoder")
    store.manifest(ref.name, int(version))
    return ref.name, [int(version)]


def export_domains(store: DomainStore, wanted: Iterable[tuple[str, Sequence[int]]], out: BinaryIO) -> tuple[int, int]:
    """Writes versions of domains to `out`. Skips versions that are deleted meanwhile. Returns the number of domains and
    the number of versions that were written.

    Raises:
        NotFound: none of the versions exists.
        CorruptArtifact: a file does not match its manifest; a backup with damaged files would be useless.
    """
    domains = count = 0
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        put(archive, CONTENTS, json_bytes({"format": FORMAT, "release": __version__}))
        for domain, versions in wanted:
            before = count
            for version in versions:
                try:
                    manifest, files = store.contents(domain, version)
                    described = count > before or facts_of(store, domain)
                except NotFound:
                    continue
                except CorruptArtifact as error:
                    raise CorruptArtifact(f"{error}; {REMEDY}") from error
                if described is not True:
                    put(archive, f"{domain}/{DOMAIN}", json_bytes(described))
                put(archive, f"{domain}/{version}/{MANIFEST}", manifest_bytes(without(manifest, "upload")))
                for name, content in files.items():
                    put(archive, f"{domain}/{version}/{name}", content)
                count += 1
            domains += count > before
    if not count:
        raise NotFound("nothing to export: none of the requested versions exists")
    return domains, count


def facts_of(store: DomainStore, domain: str) -> dict[str, Any]:
    """A domain's aliases by encoder digest, and its saved thresholds."""
    by_encoder, targets = store.every_alias(domain)
    aliases = {digest: {name: getattr(one, name) for name in ALIASES} for digest, one in sorted(by_encoder.items())}
    return {"aliases": aliases, "thresholds": {name: target.facts for name, target in targets.items()}}


def without(facts: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if name not in names}


def put(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o644
    archive.addfile(member, io.BytesIO(content))
    archive.members = []  # type: ignore[attr-defined]  # otherwise it keeps all of them


def import_domains(
    file: BinaryIO,
    store: DomainStore,
    encoders: "EncodersOfStore",
    *,
    rename: str | None = None,
    dry_run: bool = False,
    permit: Callable[[str], object] = lambda domain: None,
) -> Imported:
    """Adds the versions of an archive. Overwrites nothing, promotes nothing and adds no encoder. Safe to repeat.

    Args:
        file: the archive, positioned at its beginning; it is read twice.
        rename: another name for the domain, if the archive has only one domain.
        dry_run: checks everything and reports what would be added, but adds nothing.
        permit: called with the name of each domain before anything is added; raises an error to forbid the import.

    Raises:
        InvalidInput: the file is not an archive, a member is invalid or does not match its manifest, or a version
            cannot be used.
        TooLarge: a member is larger than any valid file of its kind.
        EncoderMismatch: the store does not have the encoder of a version.
        Conflict: in a bucket, other processes kept changing the aliases of a domain.
    """
    if not file.seekable():
        raise InvalidInput("the archive must be read twice, which is impossible with a pipe; save it into a file first")
    start = file.tell()
    imported = Imported()
    for simulated in (True, False)[: 1 if dry_run else 2]:
        file.seek(start)
        imported = Import(store, encoders, rename, permit, dry_run=simulated).run(file)
    return imported


class Import:
    """Reads an archive once. With `dry_run`, only checks the archive; otherwise, also adds its versions."""

    def __init__(
        self,
        store: DomainStore,
        encoders: "EncodersOfStore",
        rename: str | None,
        permit: Callable[[str], object],
        *,
        dry_run: bool,
    ) -> None:
        self.store, self.encoders, self.rename, self.permit, self.dry_run = store, encoders, rename, permit, dry_run
        self.imported = Imported()
        self.release = ""
        self.domain = ""  # name of the domain being read, as in the archive
        self.target = ""  # the name that this domain gets in this store
        self.facts: dict[str, Any] = {}  # content of this domain's domain.json
        # Versions of the domain `target` in this store: key from `made_of` -> number.
        self.there: dict[str, int] = {}
        self.known: set[int] = set()  # numbers of `target`'s versions that `_look` has already read
        self.next = 1  # in a dry run, the number for the next version of `target`

    def run(self, file: BinaryIO) -> Imported:
        """Reads the archive. Raises the errors of `import_domains`."""
        archive, begun = members(file), ""
        name, size = next(archive, ("", 0))
        if name != CONTENTS:
            raise InvalidInput(
                f"the file is not an archive made by 'isosim domains export': {CONTENTS} has to come first"
            )
        self.release = release_in(json_of(file, name, size))
        with contextlib.closing(self._versions(file, archive)) as versions:
            for version in versions:
                self.encoders.check(version)
                if begun != version.domain:
                    self._begin()
                self.imported.versions.append(self._add(version))
                if begun != version.domain:
                    self._add_targets()
                begun = version.domain
        if not self.imported.versions:
            raise InvalidInput("the archive holds no version")
        return self.imported

    def _versions(self, file: BinaryIO, archive: Iterator[tuple[str, int]]) -> Generator[ArchivedVersion]:
        """Yields each version after all its files were read. Its folder is deleted before the next version is read."""
        finished, numbers = set[str](), set[int]()
        for name, size in archive:
            match = MEMBER.fullmatch(name)
            if match is None:
                raise InvalidInput(f"the archive has a file {name[:120]!r}, which belongs to no version")
            if match["domain"] != self.domain:
                if match["file"] is not None or match["domain"] in finished:
                    raise InvalidInput(f"{name}: a domain's {DOMAIN} has to come first, then all its versions")
                if self.domain and self.rename is not None:
                    raise InvalidInput("as: this parameter renames a single domain, but the archive has several")
                self.domain, self.facts, numbers = match["domain"], json_of(file, name, size), set[int]()
                finished.add(self.domain)
                self.target = self.store.checked(self.rename or self.domain)
                self.permit(self.target)
                continue
            number = int(match["version"] or 0)
            if match["file"] != MANIFEST or number in numbers:
                raise InvalidInput(
                    f"{name} is unexpected here: a version's {MANIFEST} comes first, then each file that it names, once"
                )
            numbers.add(number)
            manifest = checked_manifest(json_of(file, name, size, parsed_manifest), name, self.domain, number)
            with tempfile.TemporaryDirectory(prefix="isosim-") as folder:
                self._read_files(file, archive, Path(folder), manifest)
                yield ArchivedVersion(self.domain, number, manifest, Path(folder))

    def _read_files(
        self, file: BinaryIO, archive: Iterator[tuple[str, int]], folder: Path, manifest: Mapping[str, Any]
    ) -> None:
        place, missing = f"{self.domain}/{manifest['version']}", set(manifest["files"])
        calibrator, dimensions = self.encoders.of(manifest, place)
        while missing:
            name, size = next(archive, ("", 0))
            kind = name.removeprefix(f"{place}/")
            if not name:
                raise InvalidInput(f"{place}: the archive ends before {', '.join(sorted(missing))}; is it cut off?")
            if f"{place}/{kind}" != name or kind not in missing:
                raise InvalidInput(f"{name[:120]!r} comes before {place} is complete; missing: {', '.join(missing)}")
            most = MOST_JSON.get(kind, SMALL_ARRAYS)
            if kind == WEIGHTS:
                most = ROOM + bytes_of(calibrator)
            elif kind.removesuffix(PART) in WITH_VECTORS:
                most = ROOM + 16 * dimensions**2
            if size > most:
                raise TooLarge(f"{name} has {size:,} bytes, more than any valid {kind} for this encoder")
            with (folder / kind).open("xb") as out:
                for chunk in pieces(file, name, size):
                    out.write(chunk)
            missing.discard(kind)

    def _begin(self) -> None:
        """Looks up the versions that the target already has. Called before versions are added to it."""
        self.there, self.known = {}, set()
        self._look()
        self.next = self.store.highest(self.target) + 1

    def _look(self) -> None:
        for number in self.store.versions(self.target):
            if number not in self.known:
                self.known.add(number)
                with contextlib.suppress(NotFound, CorruptArtifact, Unavailable):
                    self.there.setdefault(made_of(self.store.manifest(self.target, number)), number)

    def _adopt(self, version: ArchivedVersion, facts: Mapping[str, Any], least: int) -> tuple[int, bool]:
        """Adds a version, unless a concurrent import has added the same version. Returns the version's number in this
        store, and True if the concurrent import has added it.

        The store chooses the next free number, calls `claim`, and publishes the version under this number. `claim`
        raises AlreadyThere if the concurrent import has published the version. If the concurrent import publishes
        after `claim`, both imports usually choose the same number. The store then chooses another number and calls
        `claim` again.
        """
        what = made_of(version.manifest)

        def claim(_: int) -> None:
            self._look()
            if what in self.there:
                raise AlreadyThere(f"{version.name} is there already")

        try:
            return self.store.adopt(self.target, version.folder, facts, least, claim), False
        except AlreadyThere:
            return self.there[what], True

    def _add(self, version: ArchivedVersion) -> ImportedVersion:
        manifest, what = version.manifest, made_of(version.manifest)
        number = self.there.get(what)
        there = number is not None
        least = version.number if version.number <= HIGHEST_KEPT else 1
        if number is None and self.dry_run:
            number = max(self.next, least)
            self.next = number + 1
        elif number is None:
            origin = manifest.get("origin") or {  # the origin of an earlier import is kept
                "domain": version.domain,
                "version": version.number,
                "release": self.release,
                "imported": datetime.now(UTC).isoformat(timespec="seconds"),
            }
            # The job's id is removed: in this store, another job could have the same id.
            facts = {**without(manifest, "files", "upload", "version"), "job": None, "origin": origin}
            number, there = self._adopt(version, facts, least)
        self.there[what] = number
        aliases = object_in(object_in(self.facts, "aliases"), version.encoder)
        was = next((alias for alias in ALIASES if aliases.get(alias) == version.number), None)
        return ImportedVersion(version.name, self.target, number, manifest["encoder"]["id"], was, there)

    def _add_targets(self) -> None:
        """Saves the thresholds whose names are not taken. The domain must already have a version."""
        _, saved = self.store.every_alias(self.target)
        room = MOST_TARGETS - len(saved)
        for name, target in list(targets_in(self.facts.get("thresholds")).items())[:MOST_TARGETS]:
            if name in saved:
                if saved[name] != target:
                    self.imported.kept.append(f"{self.target}/{name}")
                continue
            if room <= 0 or not re.fullmatch(DOMAIN_NAME, name):
                self.imported.kept.append(f"{self.target}/{name[:80]}")
                continue
            if not self.dry_run:
                self.store.set_target(self.target, name, target)
            room -= 1
            self.imported.thresholds.append(f"{self.target}/{name}")


def made_of(manifest: Mapping[str, Any]) -> str:
    """A key that is the same for versions with the same files and encoder. A repeated import uses the key to recognize
    versions that the store already has."""
    return json.dumps([manifest["encoder"]["digest"], manifest["files"]], sort_keys=True)


def object_in(facts: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The JSON object `name` of `facts`; an empty object if `name` is missing or not an object."""
    value = facts.get(name)
    return value if isinstance(value, dict) else {}


class EncodersOfStore:
    """The store's encoders; each calibrator is opened once."""

    def __init__(self, store: EncoderStore) -> None:
        self.store = store
        self._opened: dict[str, tuple[OnnxCalibrator, int]] = {}

    def of(self, manifest: Mapping[str, Any], place: str) -> tuple[OnnxCalibrator, int]:
        """The calibrator of a version's encoder, and the dimension of the encoder's vectors. Raises EncoderMismatch."""
        digest = manifest["encoder"]["digest"]
        if digest not in self._opened:
            artifact = self._artifact(manifest["encoder"], place)
            calibrator = OnnxCalibrator(artifact.calibrator, ["CPUExecutionProvider"])
            self._opened[digest] = calibrator, artifact.spec.dim
        return self._opened[digest]

    def _artifact(self, encoder: Mapping[str, Any], place: str) -> EncoderArtifact:
        if not self.store.has(str(encoder["id"]), str(encoder["digest"])):
            there = ", ".join(self.store.ids()) or "none"
            raise EncoderMismatch(
                f"encoder_mismatch: {place} was made for encoder {encoder['id']} ({str(encoder['digest'])[:12]}), "
                f"which this store does not have; it has: {there}. Export the encoder into this store: isosim export"
            )
        return self.store.find(f"{encoder['id']}@{encoder['digest']}")

    def check(self, version: ArchivedVersion) -> None:
        """Checks that a version can be loaded and can score, as in a server. Raises EncoderMismatch, InvalidInput."""
        calibrator, dimensions = self.of(version.manifest, version.name)
        manifest = version.folder / MANIFEST
        try:
            for name in version.manifest["files"]:
                if name.endswith(PART):
                    check_arrays(version.folder / name)
            parsed((version.folder / REPORT).read_bytes(), REPORT)
            manifest.write_bytes(manifest_bytes(version.manifest))
            with np.errstate(all="ignore"):
                check_scores(read_version(version.folder), calibrator, dimensions)
            manifest.unlink()
        except (ValueError, TypeError, IndexError, ArithmeticError, IsosimError) as error:
            # Domain models do not check arrays before they use them. An array with a wrong shape or value can raise any
            # of these errors.
            reason = str(error).replace(str(version.folder), version.name)
            raise InvalidInput(f"{version.name} cannot be used: {reason}") from None


def bytes_of(calibrator: OnnxCalibrator) -> int:
    """Upper limit for the bytes of a version's weights."""
    return sum(8 * int(np.prod(shape)) for shape, _ in calibrator.shapes.values())


def check_scores(stored: StoredVersion, calibrator: OnnxCalibrator, dimensions: int) -> None:
    """Scores random vectors as a server would, and checks the results.

    Raises:
        CorruptArtifact: the weights do not fit the calibrator, or the results are not valid scores.
        ValueError, TypeError, IndexError, ArithmeticError, BackendFailure: the arrays do not fit together.
    """
    transform = None if stored.weights is None else calibrator.bind(stored.weights)
    pooled = np.random.default_rng(0).standard_normal((ROWS, dimensions)).astype(np.float32)
    pooled /= np.linalg.norm(pooled, axis=1, keepdims=True)
    latents = pooled if transform is None else transform(pooled)
    finite("latents", latents)
    unit = latents / np.maximum(np.linalg.norm(latents, axis=1, keepdims=True), 1e-12)
    left, right = np.arange(ROWS), np.arange(ROWS)[::-1].copy()
    similarities = np.vecdot(unit[left], unit[right])
    model, scales = stored.model, [np.empty(0)]
    rates = model.false_match_rates(latents, left, right, similarities)
    if rates is not None:
        finite("false-match rates", rates)
        scales.append(rates)
    references = (model.reference, model.raw_reference, model.scale)
    scales += [check_reference(reference) for reference in references if reference is not None]
    every = np.concatenate(scales)
    if model.probability is not None:
        finite("probabilities", model.probability.probability(every))
    for table in (model.false_hits, model.raw_false_hits):
        if table is not None:
            for gallery in (1, 1000, 10**9):
                finite("shares of false hits", table.share(every, gallery))
    levels = stored.manifest.get("levels")
    energies = level_energies(latents, levels) if levels else None
    if model.domain_test is not None:
        judgement = model.domain_test.judge(pooled, np.arange(1, ROWS + 1), energies)
        finite("p-values", judgement.p_values)
        finite("distances", judgement.distances)


def check_reference(reference: ReferenceDistribution) -> npt.NDArray[np.float64]:
    """The reference's false-match rates at similarities from −1 to 1. Raises CorruptArtifact if a rate is outside
    [0, 1], if a higher similarity has a higher rate, or if a rate or threshold is NaN or infinite."""
    rates = reference.false_match_rate(np.linspace(-1, 1, 401))
    finite("false-match rates", rates)
    if (np.diff(rates) > 1e-9).any() or rates.min() < 0 or rates.max() > 1:
        raise CorruptArtifact("the false-match rates of its reference do not fall as the similarity rises")
    thresholds = [reference.threshold(rate) for rate in (0.5, 0.01, 1e-6)]
    finite("thresholds", np.array([*thresholds, *reference.interval(0.01), reference.resolution]))
    reference.extrapolated(rates)
    reference.reachable(0.01)
    return rates


def finite(name: str, numbers: npt.NDArray[Any]) -> None:
    """Raises CorruptArtifact if a number is NaN or infinite."""
    if not np.isfinite(numbers).all():
        raise CorruptArtifact(f"its {name} are not finite numbers")


def members(file: BinaryIO) -> Iterator[tuple[str, int]]:
    """Yields name and size (bytes) of each member of a tar. At each yield, `file` is at the start of the content.

    `tarfile` is not used for reading, because it accepts sparse files and extended headers of any length.

    Raises:
        InvalidInput: the file is not a tar, or a member is not a regular file.
    """
    while True:
        block = file.read(tarfile.BLOCKSIZE)
        if block == tarfile.NUL * tarfile.BLOCKSIZE:
            if file.read(tarfile.RECORDSIZE).strip(tarfile.NUL):
                raise InvalidInput("the file continues after the end of the archive; import one archive at a time")
            return
        try:
            member = tarfile.TarInfo.frombuf(block, "ascii", "strict")
        except (tarfile.HeaderError, ValueError) as error:
            raise InvalidInput(
                f"the file is not an archive made by 'isosim domains export', or is cut off: {error}"
            ) from None
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.size < 0:
            raise InvalidInput(
                f"{member.name[:120]!r} is not a regular file; an archive may hold neither links nor folders"
            )
        content = file.tell()
        yield member.name, member.size
        file.seek(content + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE)


def pieces(file: BinaryIO, name: str, size: int) -> Iterator[bytes]:
    while size:
        chunk = file.read(min(size, CHUNK))
        if not chunk:
            raise InvalidInput(f"the archive ends within {name}; is it cut off?")
        size -= len(chunk)
        yield chunk


def json_of(
    file: BinaryIO, name: str, size: int, read: Callable[[bytes, str], dict[str, Any]] = parsed
) -> dict[str, Any]:
    """The JSON object in a member. Raises InvalidInput if the member is no JSON object, TooLarge if it is too large."""
    most = MOST_JSON[name.rpartition("/")[2]]
    if size > most:
        raise TooLarge(f"{name} has {size:,} bytes; at most {most:,} are allowed")
    try:
        return read(b"".join(pieces(file, name, size)), name)
    except CorruptArtifact as error:  # the client has sent the damaged file; the store is not damaged
        raise InvalidInput(str(error)) from None


def release_in(facts: Mapping[str, Any]) -> str:
    """The release that wrote an archive. Raises InvalidInput for another format."""
    found = facts.get("format")
    if type(found) is not int or found != FORMAT:
        raise InvalidInput(f"{CONTENTS}: this release reads archives of format {FORMAT}, not {str(found)[:20]}")
    return str(facts.get("release", ""))[:40]


def checked_manifest(manifest: dict[str, Any], name: str, domain: str, version: int) -> dict[str, Any]:
    """Returns the manifest. Raises InvalidInput if it belongs to another version, or if a value is invalid."""
    encoder, files, format_ = manifest.get("encoder"), manifest.get("files"), manifest.get("format", 1)
    if not isinstance(encoder, dict) or not ENCODER.fullmatch(f"{encoder.get('id')}@{encoder.get('digest')}"):
        raise InvalidInput(f"{name} names no encoder")
    if type(manifest.get("version")) is not int or (manifest.get("domain"), manifest["version"]) != (domain, version):
        raise InvalidInput(f"{name} is another version's manifest: its domain or version differs from this path")
    if type(format_) is not int or format_ != 1:
        raise InvalidInput(
            f"{name}: a newer release wrote this version (format {str(format_)[:20]}); import it with that release"
        )
    if not isinstance(files, dict) or not files.keys() <= set(FILES) or REPORT not in files:
        raise InvalidInput(f"{name}: files must include {REPORT}, and may include only {', '.join(FILES)}")
    sentences, levels = manifest.get("sentences"), manifest.get("levels", [])
    known = isinstance(manifest.get("method"), str) and METHOD.fullmatch(manifest["method"])
    if not known or not (sentences is None or (type(sentences) is int and sentences >= 0)):
        raise InvalidInput(f"{name}: method must be a word, and sentences a number or null")
    if not isinstance(levels, list) or not all(type(one) is int and one > 0 for one in levels):
        raise InvalidInput(f"{name}: levels must be a list of integers of at least 1, the channels of each level")
    check_date(manifest.get("created"), name)
    return manifest | ({} if manifest.get("origin") is None else {"origin": checked_origin(manifest["origin"], name)})


def checked_origin(origin: object, name: str) -> dict[str, Any]:
    """The known fields of `origin`, which says where a version was first imported from. Raises InvalidInput if a
    field is missing or invalid."""
    kinds = {"domain": str, "version": int, "release": str, "imported": str}
    if not isinstance(origin, dict) or not all(type(origin.get(key)) is kind for key, kind in kinds.items()):
        raise InvalidInput(f"{name}: origin must have the fields domain, version, release and imported (a date)")
    if not re.fullmatch(DOMAIN_NAME, origin["domain"]) or len(origin["release"]) > 40:
        raise InvalidInput(f"{name}: origin has an invalid domain, or a release of more than 40 characters")
    check_date(origin["imported"], name)
    return {key: origin[key] for key in kinds}


def check_date(date: object, name: str) -> None:
    """Raises InvalidInput unless `date` is a string in ISO 8601 with a time zone."""
    try:
        since(date if isinstance(date, str) else None)
    except CorruptArtifact as error:
        raise InvalidInput(f"{name}: {error}") from None


def check_arrays(path: Path) -> None:
    """Raises CorruptArtifact unless a .npz contains uncompressed arrays of numbers, each as long as its header says.

    Without this check, numpy could fill terabytes of memory from a file of a few kB. The file could have compressed
    zeros, a false header or overlapping members.
    """
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            begin = file.read(4)
            file.seek(-min(LEAST_ZIP + LOCATOR, size), 2)
            end = file.read()
        directory = int.from_bytes(end[-10:-6], "little")
        # A .npz begins with `PK\3\4`. `zipfile` reads a zip's whole directory into memory, so the directory's length is
        # limited below. The end record states the length, but not in a zip64 file. A zip64 file is therefore refused.
        if begin != b"PK\3\4" or end[-LEAST_ZIP:][:4] != b"PK\5\6" or end[:4] == b"PK\6\7":
            raise CorruptArtifact(f"{path.name} is not a .npz")
        if directory > MOST_DIRECTORY:
            raise CorruptArtifact(
                f"{path.name} has a directory of {directory:,} bytes; at most {MOST_DIRECTORY:,} are allowed"
            )
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
                raise CorruptArtifact(f"{path.name} is compressed")
            if sum(entry.file_size for entry in entries) > size:
                raise CorruptArtifact(f"{path.name}: its arrays are larger than the file")
            for entry in entries:
                with archive.open(entry) as content:
                    kind = np.lib.format.read_magic(content)
                    header = np.lib.format.read_array_header_1_0
                    if kind != (1, 0):
                        header = np.lib.format.read_array_header_2_0
                    shape, _, dtype = header(content)
                    length = int(np.prod(shape, dtype=object)) * dtype.itemsize
                    if dtype.kind not in "fiub" or content.tell() + length != entry.file_size:
                        raise CorruptArtifact(f"{path.name}: {entry.filename[:80]!r} is not an array of numbers")
    except (zipfile.BadZipFile, EOFError, OSError, ValueError, NotImplementedError, RuntimeError, MemoryError) as error:
        if isinstance(error, IsosimError):
            raise
        raise CorruptArtifact(f"{path.name} cannot be read: {error}") from None
