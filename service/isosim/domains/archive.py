"""Exports domains to one file and imports them, for backups and for copies into another store.

The file is an uncompressed tar of regular files, in this order:

    archive.json                        the archive's format and the release that wrote it
    <domain>/domain.json                the domain's record: versions, champions, saved thresholds
    <domain>/<version>/<file>           files of each version, as the record lists them: numbers rise, names are sorted

The same versions give the same bytes. Writing and reading hold one version at a time.

An import reads the archive twice: first it compares all files with their hashes, then it adds the versions, each by
`DomainStore.publish`. It may be killed at any time and repeated: what was added is found by its files. Hashes show
damage, and not what another person has changed: who can import can write into the store.
"""

import hashlib
import shutil
import tarfile
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any, BinaryIO

from isosim import __version__
from isosim.domains.domain import NAME, Domain, EncoderAliases, Version
from isosim.domains.store import PART, REPORT, WEIGHTS, DomainStore, kept_of
from isosim.encoders.store import EncoderStore, cache
from isosim.errors import CorruptArtifact, EncoderMismatch, InvalidInput, NotFound, UnknownDomain
from isosim.scoring.calibration import DomainModel, DomainRef
from isosim.store.artifacts import building, json_bytes, parsed, sha256, superfluous

FORMAT = 2  # number of the archive's format; increased if older releases would misread the new format
CONTENTS, DOMAIN = "archive.json", "domain.json"
RECORD = ("versions", "aliases", "thresholds")  # fields of a `Domain` that an archive has
FILES = {WEIGHTS, REPORT, *(kind + PART for kind in DomainModel.KINDS)}
MOST_NUMBER = 10**9  # of a version, so that requests can name it
NOT_AN_ARCHIVE = "the file is not an archive made by 'isosim domains export', or is cut off"
# Appended to an error that names a damaged file.
REMEDY = "delete the damaged version or file, or export the other domains by name"


@dataclass(frozen=True)
class ImportedVersion:
    source: str  # name@version in the archive
    domain: str
    version: int  # the version's number in this store
    encoder: str  # id
    was: str | None  # the version's alias in the exporting store: champion, previous or None
    there: bool  # True: this store already had a version with the same files, and nothing was added


@dataclass(frozen=True)
class Imported:
    """The result of an import."""

    versions: list[ImportedVersion] = field(default_factory=list)
    thresholds: list[str] = field(default_factory=list)  # domain/name of each saved threshold
    # domain/name of each threshold that was not imported, because the store has another target under the same name, the
    # name is invalid, or the domain already has MOST_TARGETS saved thresholds.
    kept: list[str] = field(default_factory=list)
    promoted: list[str] = field(default_factory=list)  # name@version of each version that has become champion
    # Why a version of the archive is not imported: the store does not have its encoder.
    left_out: list[str] = field(default_factory=list)


def selected(store: DomainStore, domain: str, encoder: str) -> tuple[str, list[int]]:
    """The name and versions that `domain` refers to: `name` means all versions of the domain; `name@3`, `name@previous`
    and `name@champion` mean one version.

    Raises:
        InvalidInput: `domain` is not a valid reference.
        NotFound: there is no such version.
    """
    ref = DomainRef.parse(domain)
    record = store.read(ref.name)
    if "@" not in domain:
        if not record.versions:
            raise UnknownDomain(ref.name)
        return ref.name, sorted(record.versions)
    served = record.served(encoder)
    version = {"champion": served.champion, "previous": served.previous}.get(str(ref.version), ref.version)
    if version is None:
        raise NotFound(f"domain {ref.name!r} has no {ref.version} version for this encoder")
    return ref.name, [record.version(ref.name, int(version)).number]


def export_domains(store: DomainStore, wanted: Iterable[tuple[str, Collection[int]]], out: BinaryIO) -> tuple[int, int]:
    """Writes versions of domains to `out`, which is seekable. Leaves out versions that are deleted meanwhile. Returns
    the number of domains and the number of versions that were written.

    Raises:
        NotFound: none of the versions exists.
        CorruptArtifact: a file does not match its hash; a backup with damaged files would be useless.
    """
    domains = count = 0
    put(out, CONTENTS, json_bytes({"format": FORMAT, "release": __version__}))
    for name, numbers in wanted:
        start = out.tell()
        while True:
            try:
                written = export_domain(store, name, numbers, out)
                break
            except NotFound:  # a version was deleted after the record was written: begins again
                out.seek(start)
                out.truncate()
            except CorruptArtifact as error:
                raise CorruptArtifact(f"{error}; {REMEDY}") from error
        domains, count = domains + bool(written), count + written
    if not count:
        raise NotFound("nothing to export: none of the requested versions exists")
    out.write(tarfile.NUL * 2 * tarfile.BLOCKSIZE)
    return domains, count


def export_domain(store: DomainStore, name: str, numbers: Collection[int], out: BinaryIO) -> int:
    """Writes those of the numbered versions that exist, and returns how many. Raises NotFound if one of them is
    deleted meanwhile."""
    record = store.read(name)
    versions = {number: replace(record.versions[number], upload="", job=None) for number in sorted(record.versions)}
    versions = {number: version for number, version in versions.items() if number in numbers}
    aliases = {digest: kept_of(record.aliases[digest], versions) for digest in sorted(record.aliases)}
    if not versions:
        return 0
    facts = asdict(Domain(versions=versions, aliases=aliases, thresholds=record.thresholds))
    content = json_bytes({key: {str(name): facts[key][name] for name in facts[key]} for key in RECORD})
    put(out, f"{name}/{DOMAIN}", content)
    for number in versions:
        with store.files(name, number) as (version, folder):
            for file in sorted(version.files):
                put(out, f"{name}/{number}/{file}", folder / file)
    return len(versions)


def put(out: BinaryIO, name: str, content: bytes | Path) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = content.stat().st_size if isinstance(content, Path) else len(content), 0o644
    out.write(member.tobuf(tarfile.USTAR_FORMAT))
    if isinstance(content, Path):
        with content.open("rb") as file:
            shutil.copyfileobj(file, out)
    else:
        out.write(content)
    out.write(tarfile.NUL * (-member.size % tarfile.BLOCKSIZE))


def import_domains(
    file: BinaryIO,
    store: DomainStore,
    encoders: EncoderStore,
    *,
    keep: int,
    rename: str | None = None,
    promote: bool = False,
) -> Imported:
    """Adds the versions of an archive, and adds no encoder. Of versions that are there it writes only damaged files
    again. Safe to repeat.

    Args:
        file: the archive, positioned at its beginning; it is read twice.
        keep: of each domain, the champions, the previous versions and this many of the newest are imported.
        rename: another name for the domain, if the archive has only one domain.
        promote: the archive's champions become champions. A domain without a champion also gets the previous version.

    Raises:
        InvalidInput: the file is not an archive, or a member is invalid or does not match its hash.
        EncoderMismatch: the store has the encoder of no version. If it has that of some, the others are left out.
        Conflict: a domain was deleted meanwhile, or others kept changing it.
    """
    start = file.tell()
    for adding in (False, True):  # everything is checked before anything is added
        file.seek(start)
        imported = Import(store, encoders, keep, rename, promote, adding).run(file)
    return imported


@dataclass
class Import:
    """Reads an archive once, checks it, and if `adding`, adds its versions. Other fields: see `import_domains`."""

    store: DomainStore
    encoders: EncoderStore
    keep: int
    rename: str | None
    promote: bool
    adding: bool
    imported: Imported = field(default_factory=Imported)
    fitting: int = 0  # versions whose encoder is there

    def run(self, file: BinaryIO) -> Imported:
        """Reads the archive. Raises the errors of `import_domains`."""
        try:
            with tarfile.open(fileobj=file, mode="r:") as tar:
                self._read(Members(tar))
        except (tarfile.TarError, EOFError) as error:
            raise InvalidInput(f"{NOT_AN_ARCHIVE}: {error}") from None
        return self.imported

    def _read(self, members: "Members") -> None:
        contents, seen = members.json(CONTENTS), set[str]()
        if contents.get("format") != FORMAT:
            raise InvalidInput(
                f"{CONTENTS}: this release reads archives of format {FORMAT}, not {str(contents.get('format'))[:20]}"
            )
        while (member := members.next) is not None:
            name = member.name.removesuffix(f"/{DOMAIN}")
            if name == member.name or not NAME.fullmatch(name) or name in seen:
                raise InvalidInput(f"the archive has a file {member.name[:120]!r}, which does not belong there")
            if self.rename is not None and seen:
                raise InvalidInput("--as renames a single domain, but the archive has several")
            seen.add(name)
            record = self._record(members.json(member.name), member.name)
            self._import(name, record, self.store.checked(self.rename or name), members)
        if not seen:
            raise InvalidInput("the archive holds no version")
        if not self.fitting:
            raise EncoderMismatch(f"encoder_mismatch: {self.imported.left_out[0]}")

    def _record(self, facts: dict[str, Any], called: str) -> Domain:
        """The record in an archive. Raises InvalidInput if a value is invalid."""
        try:
            record = self.store.records.form.validate_python({key: facts.get(key, {}) for key in RECORD})
        except ValueError as error:  # pydantic's
            raise InvalidInput(f"{called} does not describe a domain: {' '.join(str(error).split())[:300]}") from None
        if not record.versions:
            raise InvalidInput(f"{called} names no version")
        own: dict[str, list[int]] = {}  # encoder -> its versions
        for number, version in record.versions.items():
            if not {REPORT} <= version.files.keys() <= FILES or not version.number == number < MOST_NUMBER:
                raise InvalidInput(f"{called}: version {number} must have its number, and only files of a version")
            own.setdefault(version.encoder, []).append(number)
        aliases = {digest: kept_of(one, own[digest]) for digest, one in record.aliases.items() if digest in own}
        return replace(record, aliases=aliases)

    def _import(self, name: str, record: Domain, target: str, members: "Members") -> None:
        now = self.store.read(target)
        numbers: dict[int, int] = {}  # in the archive -> here
        beyond = superfluous(record.versions, self.keep, record.named())
        for number, version in sorted(record.versions.items()):
            called = f"{name}@{number}"
            fits = self._has_encoder(version, called)
            with building(staging()) as folder:
                for one in sorted(version.files):
                    members.extract(f"{name}/{number}/{one}", folder / one, version.files[one])
                self.fitting += fits
                if number in beyond or not fits or not self.adding:
                    continue
                now, here, there = self._add(target, now, version, folder)
            numbers[number] = here
            served = record.served(version.encoder)
            was = {served.champion: "champion", served.previous: "previous"}.get(number)
            self.imported.versions.append(ImportedVersion(called, target, here, version.encoder_id, was, there))
        if numbers:
            self._finish(target, record, numbers)

    def _has_encoder(self, version: Version, called: str) -> bool:
        """Whether the store has a version's encoder; if not, adds the reason to `left_out`."""
        if version.encoder_id in self.encoders.ids() and self.encoders.has(version.encoder_id, version.encoder):
            return True
        there = ", ".join(self.encoders.ids()) or "none"
        self.imported.left_out.append(
            f"{called} was made for encoder {version.encoder_id} ({version.encoder[:12]}), which this store does not "
            f"have; it has: {there}. Export the encoder there: isosim export"
        )
        return False

    def _add(self, target: str, now: Domain, version: Version, folder: Path) -> tuple[Domain, int, bool]:
        """Publishes a version. Returns the domain after that, the version's number, and whether it was there."""
        for one in now.versions.values():
            if (one.encoder, one.files) == (version.encoder, version.files):
                self.store.mend(target, one, folder)
                return now, one.number, True
        made_of = hashlib.sha256(json_bytes([version.encoder, sorted(version.files.items())])).hexdigest()
        # Imports of the same version at once find each other's by the job.
        own = replace(version, job=f"import-{made_of[:32]}", upload="")
        number = self.store.publish(target, folder, own, epoch=now.epoch, least=version.number).number
        return self.store.read(target), number, number in now.versions

    def _finish(self, target: str, record: Domain, numbers: dict[int, int]) -> None:
        """Saves thresholds and promotes champions, in one change."""
        thresholds, kept, promoted = list[str](), list[str](), list[str]()

        def step(domain: Domain) -> Domain:
            for names in (thresholds, kept, promoted):
                names.clear()
            for saved, wanted in record.targets.items():
                try:
                    if saved not in domain.targets:
                        domain = domain.with_target(target, saved, wanted)
                        thresholds.append(f"{target}/{saved}")
                    elif domain.targets[saved] != wanted:
                        kept.append(f"{target}/{saved}")
                except InvalidInput:
                    kept.append(f"{target}/{saved[:80]}")
            for digest, aliases in record.aliases.items() if self.promote else ():
                domain, champion = promote(domain, target, digest, aliases, numbers)
                promoted.extend([] if champion is None else [f"{target}@{champion}"])
            return domain

        self.store.change(target, step)
        self.imported.thresholds.extend(thresholds)
        self.imported.kept.extend(kept)
        self.imported.promoted.extend(promoted)


def promote(
    domain: Domain, name: str, digest: str, archived: EncoderAliases, numbers: dict[int, int]
) -> tuple[Domain, int | None]:
    """Gives a domain the champion of an archive, and its number; None if nothing changes. The previous version comes
    from the archive if the domain has no champion, and is the domain's own champion otherwise."""
    champion, previous = (numbers.get(one or 0) for one in (archived.champion, archived.previous))
    now = domain.served(digest)
    if champion is None or champion == now.champion:
        return domain, None
    if now.champion is None and previous is not None:
        domain = domain.promoted(name, digest, previous)
    return domain.promoted(name, digest, champion), champion


def staging() -> Path:
    """Folder of versions that are being imported. What a killed import leaves there is removed by one a day later."""
    return cache() / "imports"


class Members:
    """The files of an archive, in order. Raises InvalidInput and tarfile's errors."""

    next: tarfile.TarInfo | None  # None at the end

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self._follow()

    def _take(self, wanted: str) -> IO[bytes]:
        member = self.next
        content = self._tar.extractfile(member) if member is not None and member.isreg() else None
        if member is None or member.name != wanted or content is None:
            there = "its end" if member is None else f"{member.name[:120]!r}"
            raise InvalidInput(f"{NOT_AN_ARCHIVE}: it has {there} in the place of {wanted}")
        return content

    def _follow(self) -> None:
        """Goes to the next member. For tarfile, a damaged header is the end of the archive."""
        self.next = self._tar.next()
        if self.next is None:
            file = self._tar.fileobj
            file.seek(self._tar.offset)
            length = 0
            while block := file.read(1 << 20):
                length += len(block)
                if block.strip(tarfile.NUL):
                    raise InvalidInput(f"{NOT_AN_ARCHIVE}: it has a damaged header")
            if length < 2 * tarfile.BLOCKSIZE:
                raise InvalidInput(f"{NOT_AN_ARCHIVE}: it has no end")

    def _advance(self) -> None:
        self._tar.members.clear()  # type: ignore[attr-defined]  # tarfile remembers all
        self._follow()

    def json(self, name: str) -> dict[str, Any]:
        content = self._take(name).read()
        self._advance()
        try:
            return parsed(content, name)
        except CorruptArtifact as error:  # the file is damaged, and not the store
            raise InvalidInput(str(error)) from None

    def extract(self, name: str, path: Path, digest: str) -> None:
        """Writes a member into a file. Raises InvalidInput if it does not have the SHA-256 `digest`."""
        with path.open("xb") as out:
            shutil.copyfileobj(self._take(name), out)
        if sha256(path) != digest:
            raise InvalidInput(f"{name} does not match its SHA-256; the archive is damaged")
        self._advance()
