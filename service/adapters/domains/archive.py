"""Domains in one file: a backup, or the way from one store to another.

A plain tar, so that its size bounds what is read out of it:

    archive.json                        what it holds: domains, versions, who answered, saved thresholds
    <domain>/<version>/manifest.json    as in the store it came from; before the version's other files
    <domain>/<version>/<file>           weights.safetensors, report.json, reference.npz, …

What comes in may be anybody's: members have fixed names and are plain files, every file has the hash of its sealed
manifest, arrays are of numbers and as long as they say, and each version is read as a server would. All of this is
done before the first one is published.
"""

import contextlib
import io
import re
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from service import __version__
from service.adapters.domains.store import ALIASES, MOST_TARGETS, PART, REPORT, WEIGHTS, DomainStore, read_version
from service.adapters.encoder.onnx_engine import OnnxCalibrator
from service.adapters.encoder.store import EncoderArtifact, EncoderStore
from service.adapters.storage.artifacts import MANIFEST, json_bytes, manifest_bytes, parsed, parsed_manifest
from service.core.errors import (
    CorruptArtifact,
    EncoderMismatch,
    InvalidInput,
    IsosimError,
    NotFound,
    TooLarge,
    Unavailable,
    UnknownDomain,
)
from service.core.scoring.advice import targets_in
from service.core.scoring.calibration import DOMAIN_NAME, DomainModel, DomainRef

FORMAT = 1  # raise it when an older release would read an archive wrongly
CONTENTS = "archive.json"
FILES = (WEIGHTS, REPORT, *(kind + PART for kind in DomainModel.KINDS))
MEMBER = re.compile(rf"(?P<domain>{DOMAIN_NAME})/(?P<version>[1-9][0-9]{{0,8}})/(?P<file>[a-z_]+\.[a-z]+)")
ENCODER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}@[0-9a-f]{64}")  # a path is made of it
MOST_BYTES = 20 << 30  # of an archive; a domain of 384 dimensions has about 3 MB a version
MOST_JSON = 64 << 20  # bytes of a file in JSON
CHUNK = 1 << 20
LEAST_ZIP = 22  # bytes of a zip's end record without a comment
MOST_DIRECTORY = 100_000  # bytes of a .npz's directory; ours have less than 1,000


@dataclass(frozen=True)
class ArchivedVersion:
    """A version on its way in: its manifest there, and the folder with its files."""

    domain: str
    manifest: Mapping[str, Any]
    folder: Path

    @property
    def number(self) -> int:
        number: int = self.manifest["version"]
        return number

    @property
    def name(self) -> str:
        return f"{self.domain}@{self.number}"


@dataclass(frozen=True)
class ImportedVersion:
    source: str  # name@version in the archive
    domain: str
    version: int  # the number it has, or would have, here
    encoder: str  # id
    was: str | None  # champion or previous, where it came from
    there: bool  # the same files are a version here already; nothing was added


@dataclass(frozen=True)
class Imported:
    """What an import did, or would do."""

    versions: list[ImportedVersion] = field(default_factory=list)
    thresholds: list[str] = field(default_factory=list)  # domain/name of those that were saved
    kept: list[str] = field(default_factory=list)  # not saved: the name has another target here, or there is no room


def selected(store: DomainStore, domain: str, encoder: str) -> dict[str, list[int]]:
    """The versions that a reference means: all of a domain; of name@3, name@previous or name@champion this one.

    Raises:
        InvalidInput: this is no reference. NotFound: there is no such version.
    """
    ref = DomainRef.parse(domain)
    if "@" not in domain:
        versions = store.versions(ref.name)
        if not versions:
            raise UnknownDomain(ref.name)
        return {ref.name: versions}
    aliases = store.aliases(ref.name, encoder)
    version = {"champion": aliases.champion, "previous": aliases.previous}.get(str(ref.version), ref.version)
    if version is None:
        raise NotFound(f"domain {ref.name!r} has no {ref.version} version for this encoder")
    store.manifest(ref.name, int(version))
    return {ref.name: [int(version)]}


def export_domains(store: DomainStore, wanted: Mapping[str, Sequence[int]], out: BinaryIO) -> int:
    """Writes versions by domain; how many there were. A version that is deleted meanwhile is left out.

    Raises:
        NotFound: none of them is there.
        CorruptArtifact: a file does not match its manifest; what is damaged is no backup.
    """
    count = 0
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        put(archive, CONTENTS, json_bytes(contents(store, wanted)))
        for domain, versions in wanted.items():
            for version in versions:
                with contextlib.suppress(NotFound):
                    manifest = store.manifest(domain, version)
                    store.load(domain, version)  # every file as its manifest says
                    with store.storage.files(domain, version, manifest) as folder:
                        place = f"{domain}/{version}"
                        put(archive, f"{place}/{MANIFEST}", manifest_bytes(manifest))
                        for name in manifest["files"]:
                            put(archive, f"{place}/{name}", (folder / name).read_bytes())
                    count += 1
    if not count:
        raise NotFound("nothing to export: there is no such version")
    return count


def contents(store: DomainStore, wanted: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "release": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "domains": {domain: facts_of(store, domain, versions) for domain, versions in wanted.items()},
    }


def facts_of(store: DomainStore, domain: str, versions: Sequence[int]) -> dict[str, Any]:
    """A domain's part of the contents: by encoder who answered, and the saved thresholds."""
    aliases: dict[str, Any] = {}
    thresholds: dict[str, Any] = {}
    for version in versions:
        with contextlib.suppress(NotFound):
            encoder = store.manifest(domain, version)["encoder"]
            named = store.aliases(domain, encoder["digest"])
            thresholds = {name: target.facts for name, target in named.targets.items()}
            aliases[encoder["digest"]] = {"champion": named.champion, "previous": named.previous}
    return {"versions": list(versions), "aliases": aliases, "thresholds": thresholds}


def put(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o644
    archive.addfile(member, io.BytesIO(content))


def import_domains(
    file: BinaryIO,
    store: DomainStore,
    encoders: "EncodersOfStore",
    *,
    rename: str | None = None,
    dry_run: bool = False,
    permit: Callable[[str], object] = lambda domain: None,
) -> Imported:
    """Adds the versions of an archive. Overwrites nothing, promotes nothing, makes no encoder; may be repeated.

    Args:
        file: the archive; it need not be seekable.
        rename: the domain's name here, for an archive of one domain.
        dry_run: checks everything and says what would be done.
        permit: raises for a domain that the caller may not change, before anything is added.

    Raises:
        InvalidInput: this is no archive, or its members are not what they should be.
            A file differs from its manifest, or cannot be read as what it is.
        EncoderMismatch: a version is of an encoder that the store has not.
        Conflict: in a bucket other processes kept changing the aliases of a domain.
    """
    with tempfile.TemporaryDirectory(prefix="isosim-") as temporary:
        try:
            facts, versions = unpacked(file, Path(temporary))
            for version in versions:
                encoders.check(version)
        except CorruptArtifact as error:  # the sender's fault, not the store's
            raise InvalidInput(str(error)) from None
        names = sorted({version.domain for version in versions})
        if rename is not None and len(names) != 1:
            raise InvalidInput(f"as: the archive has {len(names)} domains, and only one can have another name")
        for name in names:
            permit(store.checked(rename or name))
        imported = Imported()
        for version in sorted(versions, key=lambda one: (one.domain, one.number)):
            domain = rename or version.domain
            imported.versions.append(add(store, domain, version, facts, imported.versions, dry_run=dry_run))
        for name in names:
            add_targets(store, rename or name, facts.get(name, {}), imported, dry_run=dry_run)
        return imported


def add(
    store: DomainStore,
    domain: str,
    version: ArchivedVersion,
    facts: Mapping[str, Any],
    before: Sequence[ImportedVersion],
    *,
    dry_run: bool,
) -> ImportedVersion:
    manifest = version.manifest
    encoder = manifest["encoder"]
    number = same_version(store, domain, manifest)
    there = number is not None
    if number is None and dry_run:
        taken = (one.version for one in before if one.domain == domain)
        number = max(store.storage.highest(domain) + 1, version.number, *(one + 1 for one in taken))
    elif number is None:
        origin = manifest.get("origin") or {  # of a version that moved before, the place where it was made
            "domain": version.domain,
            "version": version.number,
            "release": facts.get(CONTENTS, ""),
            "imported": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        number = store.adopt(domain, version.folder, manifest, origin)
    aliases = facts.get(version.domain, {}).get("aliases", {}).get(encoder["digest"], {})
    was = next((alias for alias in ALIASES if aliases.get(alias) == version.number), None)
    return ImportedVersion(version.name, domain, number, encoder["id"], was, there)


def same_version(store: DomainStore, domain: str, manifest: Mapping[str, Any]) -> int | None:
    """The version here that has the same files for the same encoder: of an import that is repeated."""
    for number in store.versions(domain):
        with contextlib.suppress(NotFound, CorruptArtifact, Unavailable):
            mine = store.manifest(domain, number)
            if mine["files"] == manifest["files"] and mine["encoder"]["digest"] == manifest["encoder"]["digest"]:
                return number
    return None


def add_targets(
    store: DomainStore, domain: str, facts: Mapping[str, Any], imported: Imported, *, dry_run: bool
) -> None:
    """Saves the thresholds whose names are free."""
    encoder = next(iter(facts.get("aliases", {})), "")
    saved = store.aliases(domain, encoder).targets
    for name, target in list(targets_in(facts.get("thresholds")).items())[:MOST_TARGETS]:
        if name in saved:
            if saved[name] != target:
                imported.kept.append(f"{domain}/{name}")
            continue
        try:
            if not dry_run:
                store.set_target(domain, name, target)
            imported.thresholds.append(f"{domain}/{name}")
        except InvalidInput:  # this is no name, or the domain has as many as it may have
            imported.kept.append(f"{domain}/{name}")


class EncodersOfStore:
    """The encoders that are there, each with its calibrator, opened once."""

    def __init__(self, store: EncoderStore) -> None:
        self.store = store
        self._calibrators: dict[str, OnnxCalibrator] = {}

    def check(self, version: ArchivedVersion) -> None:
        """Reads a version as a server would. Raises EncoderMismatch, CorruptArtifact."""
        encoder = version.manifest["encoder"]
        calibrator = self._calibrators.get(encoder["digest"])
        if calibrator is None:
            artifact = self._artifact(version)
            calibrator = OnnxCalibrator(artifact.calibrator, ["CPUExecutionProvider"])
            self._calibrators[encoder["digest"]] = calibrator
        for name in version.manifest["files"]:
            if name.endswith(PART):
                check_arrays(version.folder / name)
        (version.folder / MANIFEST).write_bytes(manifest_bytes(version.manifest))
        try:
            stored = read_version(version.folder)
        except CorruptArtifact as error:
            raise CorruptArtifact(str(error).replace(str(version.folder), version.name)) from None
        (version.folder / MANIFEST).unlink()
        if stored.weights is not None:
            calibrator.bind(stored.weights)

    def _artifact(self, version: ArchivedVersion) -> EncoderArtifact:
        encoder = version.manifest["encoder"]
        if not self.store.has(str(encoder["id"]), str(encoder["digest"])):
            there = ", ".join(self.store.ids()) or "none"
            raise EncoderMismatch(
                f"encoder_mismatch: {version.name} was made for encoder {encoder['id']} "
                f"({str(encoder['digest'])[:12]}), which this store has not; there are: {there}. Export the same "
                "encoder here first: isosim export"
            )
        return self.store.find(f"{encoder['id']}@{encoder['digest']}")


def unpacked(file: BinaryIO, folder: Path) -> tuple[dict[str, Any], list[ArchivedVersion]]:
    """What the contents say of each domain, and the versions, their files in folders.

    Raises:
        InvalidInput, CorruptArtifact, TooLarge
    """
    try:
        with tarfile.open(fileobj=file, mode="r|") as archive:
            members = plain_files(archive)
            first = next(members, None)
            if first is None or first[0] != CONTENTS:
                raise InvalidInput(f"the file is no archive of domains: {CONTENTS} has to come first")
            facts = understood(parsed(first[1].read(MOST_JSON + 1), CONTENTS))
            versions = [*read_versions(members, folder)]
    except (tarfile.TarError, EOFError, UnicodeError, ValueError) as error:
        if isinstance(error, IsosimError):
            raise
        raise InvalidInput(f"the file is no archive of domains (isosim domains export): {error}") from None
    if not versions:
        raise InvalidInput("the archive holds no version")
    return facts, versions


def understood(facts: Mapping[str, Any]) -> dict[str, Any]:
    """By domain the contents' facts, and under the contents' own name the release that wrote them."""
    if facts.get("format") != FORMAT:
        raise InvalidInput(
            f"{CONTENTS}: this release reads archives of format {FORMAT}, not {str(facts.get('format'))[:20]}"
        )
    domains = facts.get("domains")
    if not isinstance(domains, dict):
        raise InvalidInput(f"{CONTENTS} names no domains")
    readable = {name: one for name, one in domains.items() if isinstance(one, dict)}
    for one in readable.values():
        aliases = one.get("aliases")
        one["aliases"] = {k: v for k, v in aliases.items() if isinstance(v, dict)} if isinstance(aliases, dict) else {}
    return {**readable, CONTENTS: str(facts.get("release", ""))[:40]}


def plain_files(archive: tarfile.TarFile) -> Iterator[tuple[str, BinaryIO]]:
    """Names and contents of the members, one by one. Raises InvalidInput for all but plain files."""
    total = 0
    while (member := archive.next()) is not None:
        archive.members = []  # type: ignore[attr-defined] # else it keeps all of them
        if not member.isreg() or member.issparse():
            raise InvalidInput(f"{member.name[:120]!r} is no plain file; an archive holds neither links nor folders")
        total += member.size
        if total > MOST_BYTES:
            raise TooLarge(f"the archive holds more than {MOST_BYTES:,} bytes")
        if member.name.endswith(".json") and member.size > MOST_JSON:
            raise TooLarge(f"{member.name[:120]} has more than {MOST_JSON:,} bytes")
        content = archive.extractfile(member)
        assert content is not None  # noqa: S101 - of a plain file
        yield member.name, content  # type: ignore[misc]


def read_versions(members: Iterable[tuple[str, BinaryIO]], folder: Path) -> Iterator[ArchivedVersion]:
    """Each version, once all files of its manifest are there."""
    manifest: dict[str, Any] | None = None
    place, done = "", set[str]()
    missing: set[str] = set()
    for name, content in members:
        found = MEMBER.fullmatch(name)
        if found is None or found["file"] not in (MANIFEST, *FILES):
            raise InvalidInput(f"{name[:120]!r} belongs to no version")
        this = f"{found['domain']}@{found['version']}"
        if found["file"] == MANIFEST:
            if missing or this in done:
                raise InvalidInput(f"{name}: the version before it is not complete, or the same comes twice")
            manifest = checked_manifest(content.read(MOST_JSON), found["domain"], int(found["version"]))
            place, missing = this, set(manifest["files"])
            (folder / place).mkdir()
        elif this != place or found["file"] not in missing:
            raise InvalidInput(f"{name}: its version's manifest does not name it, comes later, or it comes twice")
        else:
            with (folder / place / found["file"]).open("xb") as out:
                while chunk := content.read(CHUNK):
                    out.write(chunk)
            missing.discard(found["file"])
        if not missing and manifest is not None:
            done.add(place)
            yield ArchivedVersion(found["domain"], manifest, folder / place)
            manifest = None
    if missing:
        raise InvalidInput(f"{place}: the archive ends before {', '.join(sorted(missing))}; is it cut off?")


def checked_manifest(content: bytes, domain: str, version: int) -> dict[str, Any]:
    """Raises CorruptArtifact where it was changed, InvalidInput where it is not this version's."""
    name = f"{MANIFEST} of {domain}@{version}"
    manifest = parsed_manifest(content, name)
    encoder, files = manifest.get("encoder"), manifest.get("files")
    if not isinstance(encoder, dict) or not ENCODER.fullmatch(f"{encoder.get('id')}@{encoder.get('digest')}"):
        raise InvalidInput(f"{name} names no encoder")
    if (manifest.get("domain"), manifest.get("version")) != (domain, version):
        raise InvalidInput(f"{name} is another version's")
    if manifest.get("format", 1) != 1 or not {"method", "created"} <= manifest.keys():
        raise InvalidInput(f"{name}: this release does not read such versions")
    if not isinstance(files, dict) or not files or not files.keys() <= set(FILES) or REPORT not in files:
        raise InvalidInput(f"{name} names no files of a version")
    return manifest


def check_arrays(path: Path) -> None:
    """Raises CorruptArtifact unless a .npz holds arrays of numbers, uncompressed, each as long as it says.

    A few kB of compressed zeros are terabytes of memory where they are read, and so is a header that lies.
    """
    try:
        with path.open("rb") as file:
            file.seek(-LEAST_ZIP, 2)
            end = file.read()
        if end[:4] != b"PK\5\6" or int.from_bytes(end[12:16], "little") > MOST_DIRECTORY:
            raise CorruptArtifact(f"{path.name} has a directory of its own kind")
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                if member.compress_type != zipfile.ZIP_STORED:
                    raise CorruptArtifact(f"{path.name}: {member.filename[:80]!r} is compressed")
                with archive.open(member) as content:
                    kind = np.lib.format.read_magic(content)
                    header = np.lib.format.read_array_header_1_0
                    if kind != (1, 0):
                        header = np.lib.format.read_array_header_2_0
                    shape, _, dtype = header(content)
                    size = int(np.prod(shape, dtype=object)) * dtype.itemsize
                    if dtype.kind not in "fiub" or content.tell() + size != member.file_size:
                        raise CorruptArtifact(f"{path.name}: {member.filename[:80]!r} is no array of numbers")
    except (zipfile.BadZipFile, EOFError, OSError, ValueError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, IsosimError):
            raise
        raise CorruptArtifact(f"{path.name} cannot be read: {error}") from None
