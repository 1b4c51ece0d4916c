"""Domains as files: what goes out comes in again, bit for bit; what is not an archive of ours adds nothing."""

import errno
import hashlib
import io
import json
import os
import shutil
import struct
import tarfile
import threading
import tracemalloc
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import safetensors.numpy

from isosim.domains.archive import CONTENTS, EncodersOfStore, Import, Imported, export_domains, import_domains
from isosim.domains.store import DomainStore
from isosim.encoders.store import EncoderStore
from isosim.errors import EncoderMismatch, InvalidInput, IsosimError, NotFound, TooLarge
from isosim.fitting.job import CalibrationInput, calibrate_job
from isosim.jobs.job import JobRequest
from isosim.scoring.advice import Target
from isosim.store.artifacts import manifest_bytes, parsed_manifest
from tests.objects import Objects, objects  # noqa: F401 - a fixture
from tests.text import sentences

Members = dict[str, bytes]


@pytest.fixture(scope="module")
def source(tiny_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`news@1`, deleted; `news@2`, whitened, previous; `news@3`, champion; a saved threshold."""
    store = tmp_path_factory.mktemp("source") / "store"
    shutil.copytree(tiny_store / "encoders", store / "encoders")
    domains, artifact = DomainStore(store), EncoderStore.at(store).find("tiny")
    texts = sentences(300)
    for method in ("identity", "whitening", "identity"):
        asked = JobRequest("news", artifact.digest, artifact.id, method, "always", sentences=len(texts))
        calibrate_job(asked, CalibrationInput(texts, []), artifact, domains, lambda *_: None, threads=1).publish(
            domains
        )
    domains.delete("news", 1)
    domains.set_target("news", "duplicates", Target(fmr=0.01))
    return store


@pytest.fixture(scope="module")
def members(source: Path) -> Members:
    """What an export of it holds, by name."""
    return unpacked(exported(source))


def exported(store: Path, **wanted: list[int]) -> bytes:
    out = io.BytesIO()
    domains = DomainStore(store)
    export_domains(domains, wanted.items() or [("news", domains.versions("news"))], out)
    return out.getvalue()


def unpacked(content: bytes) -> Members:
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        return {one.name: archive.extractfile(one).read() for one in archive}  # type: ignore[union-attr]


def packed(members: Members, change: Callable[[tarfile.TarInfo], None] = lambda member: None, times: int = 1) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in [*members.items(), *[*members.items()][1:] * (times - 1)]:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            change(member)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


@pytest.fixture(params=["folder", "bucket"])
def target(request: pytest.FixtureRequest, source: Path, tmp_path: Path) -> DomainStore:
    """An empty store, in a folder and in object storage; its encoders are those of `source`."""
    return DomainStore(tmp_path / "store" if request.param == "folder" else request.getfixturevalue("objects").bucket())


@pytest.fixture
def take(source: Path) -> Callable[..., Imported]:
    encoders = EncodersOfStore(EncoderStore.at(source))
    return lambda content, store, **options: import_domains(io.BytesIO(content), store, encoders, **options)


Take = Callable[..., Imported]


def test_versions_come_back_bit_for_bit_with_their_numbers_and_are_not_promoted(
    source: Path, target: DomainStore, take: Take
) -> None:
    imported = take(exported(source), target)
    assert [(one.source, one.version, one.was, one.there) for one in imported.versions] == [
        ("news@2", 2, "previous", False),
        ("news@3", 3, "champion", False),
    ]
    assert (imported.thresholds, imported.kept) == (["news/duplicates"], [])
    before = DomainStore(source)
    for version in (2, 3):
        old, new = before.load("news", version), target.load("news", version)
        assert old.manifest["files"] == new.manifest["files"]
        assert old.manifest["created"] == new.manifest["created"]
        origin = new.manifest["origin"]
        assert (origin["domain"], origin["version"]) == ("news", version)
        assert target.report("news", version) == before.report("news", version)
    digest = before.manifest("news", 3)["encoder"]["digest"]
    aliases = target.aliases("news", digest)
    assert (aliases.champion, aliases.previous, aliases.targets) == (None, None, {"duplicates": Target(fmr=0.01)})
    target.promote("news", digest, 3, expected=aliases)


def test_an_import_that_is_repeated_adds_nothing(source: Path, target: DomainStore, take: Take) -> None:
    content = exported(source)
    take(content, target)
    again = take(content, target)
    assert [(one.version, one.there) for one in again.versions] == [(2, True), (3, True)]
    assert (again.thresholds, again.kept) == ([], [])
    assert target.versions("news") == [2, 3]


def test_nothing_is_overwritten(source: Path, target: DomainStore, take: Take) -> None:
    """A number that is taken is not given again, and a saved threshold stays as it is."""
    take(exported(source, news=[3]), target, rename="mine")
    target.set_target("mine", "duplicates", Target(fmr=0.5))
    assert target.versions("mine") == [3]
    imported = take(exported(source, news=[2]), target, rename="mine")
    assert [(one.source, one.domain, one.version) for one in imported.versions] == [("news@2", "mine", 4)]
    assert imported.kept == ["mine/duplicates"]
    assert target.versions("mine") == [3, 4]


def test_a_deleted_number_stays_taken(source: Path, target: DomainStore, take: Take) -> None:
    take(exported(source), target)
    target.delete("news", 3)
    assert [one.version for one in take(exported(source), target).versions] == [2, 4]


def test_a_version_that_moved_twice_names_the_place_where_it_was_made(
    source: Path, target: DomainStore, take: Take, tmp_path: Path
) -> None:
    take(exported(source, news=[3]), target, rename="mine")
    out = io.BytesIO()
    export_domains(target, [("mine", [3])], out)
    last = DomainStore(tmp_path / "last")
    take(out.getvalue(), last, rename="yours")
    assert last.manifest("yours", 3)["origin"]["domain"] == "news"


def test_a_dry_run_says_the_same_and_changes_nothing(source: Path, target: DomainStore, take: Take) -> None:
    content = exported(source)
    dry = take(content, target, dry_run=True)
    assert (target.domains(), list(target.announced())) == ([], [])
    assert asdict(dry) == asdict(take(content, target))


def test_a_domain_that_the_caller_may_not_change_is_refused_before_anything_is_added(
    source: Path, target: DomainStore, take: Take
) -> None:
    def permit(domain: str) -> None:
        raise IsosimError(f"{domain} is not yours")

    with pytest.raises(IsosimError, match="mine is not yours"):
        take(exported(source), target, rename="mine", permit=permit)
    assert target.domains() == []


def test_another_encoder_is_refused_by_name(members: Members, target: DomainStore, take: Take) -> None:
    with pytest.raises(EncoderMismatch, match=r"news/2 was made for encoder other .* not have; it has: .*tiny"):
        take(packed(remade(members, lambda facts: facts["encoder"].update(id="other"))), target)
    with pytest.raises(EncoderMismatch):
        take(packed(remade(members, lambda facts: facts["encoder"].update(digest="0" * 64))), target)
    assert target.domains() == []


def test_nothing_to_export_is_said(source: Path) -> None:
    with pytest.raises(NotFound):
        exported(source, news=[1])


def remade(members: Members, change: Callable[[dict[str, Any]], object]) -> Members:
    """With every manifest changed, and sealed again."""
    result = dict(members)
    for name in members:
        if name.endswith("manifest.json"):
            facts = parsed_manifest(members[name], name)
            change(facts)
            result[name] = manifest_bytes(facts)
    return result


def exchanged(members: Members, file: str, content: bytes) -> Members:
    """With another content of a file of the versions that have it, whose hash the manifests name."""

    def change(facts: dict[str, Any]) -> None:
        if file in facts["files"]:
            facts["files"][file] = hashlib.sha256(content).hexdigest()

    return {name: content if name.endswith(f"/{file}") else old for name, old in remade(members, change).items()}


def npz(**arrays: Any) -> bytes:
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def lying_npz() -> bytes:
    """One array that says it has a terabyte."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (1 << 37,)})
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("similarities.npy", header.getvalue() + b"\0" * 800)
    return out.getvalue()


def compressed_npz() -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, similarities=np.zeros(10_000_000))
    return out.getvalue()


def pickled_npz() -> bytes:
    out = io.BytesIO()
    np.savez(out, allow_pickle=True, similarities=np.array([{"a": print}], dtype=object))
    return out.getvalue()


def npy_before_npz() -> bytes:
    """numpy looks at the beginning and reads one array; zipfile looks at the end and reads an archive."""
    before = io.BytesIO()
    np.save(before, np.zeros(8))
    return before.getvalue() + npz(a=np.arange(3.0))


def npz_of_hidden_length() -> bytes:
    """The length of its directory stands in a record of zip64, where the usual one says 0."""
    content = npz(**{str(number): np.zeros(0) for number in range(400)})
    end = content[-22:]
    length, start = int.from_bytes(end[12:16], "little"), int.from_bytes(end[16:20], "little")
    record = b"PK\6\6" + struct.pack("<QHHLLQQQQ", 44, 45, 45, 0, 0, 400, 400, length, start)
    locator = b"PK\6\7" + struct.pack("<LQL", 0, len(content) - 22, 1)
    return content[:-22] + record + locator + end[:12] + b"\0" * 4 + end[16:]


def overlapping_npz() -> bytes:
    """Many entries of the directory name the same array."""
    content = npz(similarities=np.zeros(10_000))
    start = int.from_bytes(content[-6:-2], "little")
    directory = content[start:-22] * 100
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 100, 100, len(directory), start, 0)
    return content[:start] + directory + end


def crowded_npz() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for number in range(2):
            entry = zipfile.ZipInfo(f"{number}.npy")
            entry.comment = b"x" * 55_000
            archive.writestr(entry, b"")
    return out.getvalue()


def changed_npz(name: str, **arrays: Any) -> Callable[[Members], bytes]:
    """With other arrays in a part of each version that has it."""

    def change(members: Members) -> bytes:
        old = next(content for place, content in members.items() if place.endswith(f"/{name}"))
        with np.load(io.BytesIO(old)) as before:
            return packed(exchanged(members, name, npz(**{**before, **arrays})))

    return change


def changed_weights(value: float) -> Callable[[Members], bytes]:
    def change(members: Members) -> bytes:
        old = next(content for place, content in members.items() if place.endswith("/weights.safetensors"))
        weights = {name: array.copy() for name, array in safetensors.numpy.load(old).items()}
        for array in weights.values():
            if array.dtype == np.float32:
                array[...] = value
        return packed(exchanged(members, "weights.safetensors", safetensors.numpy.save(weights)))

    return change


def facts(**changes: Any) -> Callable[[Members], bytes]:
    """With other facts in each manifest, sealed again."""
    return lambda members: packed(remade(members, lambda one: one.update(changes)))


def as_sparse(members: Members) -> bytes:
    """The first member says that it has a terabyte, most of it a hole."""
    content = bytearray(packed(members))
    header = tarfile.TarInfo(CONTENTS)
    header.size, header.type = 1 << 40, tarfile.GNUTYPE_SPARSE
    return header.tobuf(tarfile.GNU_FORMAT) + bytes(content[512:])


def extended(members: Members) -> bytes:
    """A pax header, whose length tarfile would read into memory, before a member."""
    out = io.BytesIO()
    with tarfile.open(
        fileobj=out, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "x" * 10_000}
    ) as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def negative(members: Members) -> bytes:
    """A size below zero, in base 256: a reader that believes it reads the same block for ever."""
    header = bytearray(packed(members)[:512])
    header[124:136] = b"\xff" * 10 + b"\xfe\x00"
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    return bytes(header) + packed(members)[512:]


def link(member: tarfile.TarInfo) -> None:
    if member.name.endswith("report.json"):
        member.type, member.linkname, member.size = tarfile.SYMTYPE, "/etc/passwd", 0


def twice(members: Members) -> bytes:
    """With the last version once more."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in [*members.items(), *(one for one in members.items() if one[0].startswith("news/3/"))]:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def hard_link(member: tarfile.TarInfo) -> None:
    if member.name.endswith("report.json"):
        member.type, member.linkname, member.size = tarfile.LNKTYPE, CONTENTS, 0


def renamed(members: Members, old: str, new: str) -> Members:
    return {name.replace(old, new): content for name, content in members.items()}


def without(members: Members, ending: str) -> Members:
    return {name: content for name, content in members.items() if not name.endswith(ending)}


HOSTILE: dict[str, tuple[Callable[[Members], bytes], str]] = {
    "empty": (lambda _: b"", "not an archive"),
    "no tar": (lambda _: b"\x1f\x8b" + b"a sentence\n" * 1000, "not an archive"),
    "cut off": (lambda m: packed(m)[: len(packed(m)) // 2], "not an archive|cut off"),
    "contents missing": (lambda m: packed(without(m, CONTENTS)), "has to come first"),
    "contents alone": (lambda m: packed({CONTENTS: m[CONTENTS]}), "holds no version"),
    "a newer format": (lambda m: packed({**m, CONTENTS: json.dumps({"format": 9}).encode()}), "format 1, not 9"),
    "contents of another kind": (lambda m: packed({**m, CONTENTS: b"[1]"}), "not a JSON object"),
    "a path upwards": (lambda m: packed(renamed(m, "news/", "../news/")), "belongs to no version"),
    "an absolute path": (lambda m: packed(renamed(m, "news/", "/tmp/news/")), "belongs to no version"),  # noqa: S108
    "a name with a space": (lambda m: packed(renamed(m, "news/", "Ne ws/")), "belongs to no version"),
    "another file": (lambda m: packed({**m, "news/2/run.sh": b"rm"}), "is unexpected here"),
    "a symbolic link": (lambda m: packed(m, link), "not a regular file"),
    "a hard link": (lambda m: packed(m, hard_link), "not a regular file"),
    "a file that is missing": (lambda m: packed(without(m, "2/report.json")), "before news/2 is complete"),
    "a file of no manifest": (lambda m: packed(without(m, "2/manifest.json")), "is unexpected here"),
    "the same domain twice": (lambda m: packed(m, times=2), "is unexpected here"),
    "a file that was changed": (
        lambda m: packed({**m, "news/2/report.json": m["news/2/report.json"].replace(b"1", b"2")}), "does not match",
    ),
    "a manifest that was changed": (
        lambda m: packed({**m, "news/2/manifest.json": m["news/2/manifest.json"].replace(b"whitening", b"soft")}),
        "was changed",
    ),
    "a manifest of another version": (lambda m: packed(remade(m, lambda f: f.update(version=7))), "another version's"),
    "an encoder that is a path": (
        lambda m: packed(remade(m, lambda f: f["encoder"].update(id="../../x"))), "names no encoder",
    ),
    "files that are a path": (lambda m: packed(remade(m, lambda f: f.update(files={"../x": "0"}))), "files must"),
    "a compressed array": (lambda m: packed(exchanged(m, "reference.npz", compressed_npz())), "compressed"),
    "an array that lies": (lambda m: packed(exchanged(m, "reference.npz", lying_npz())), "not an array of numbers"),
    "a pickle": (lambda m: packed(exchanged(m, "reference.npz", pickled_npz())), "not an array of numbers"),
    "a long directory of arrays": (lambda m: packed(exchanged(m, "reference.npz", crowded_npz())), "a directory of"),
    "no arrays": (lambda m: packed(exchanged(m, "reference.npz", b"nothing")), "is not a .npz"),
    "arrays of another kind": (lambda m: packed(exchanged(m, "reference.npz", npz(a=np.arange(3)))), "cannot be read"),
    "weights that do not fit": (
        lambda m: packed(
            exchanged(m, "weights.safetensors", safetensors.numpy.save({"mean": np.zeros(8, np.float32)}))
        ),
        "do not fit",
    ),
    "weights of bytes 255": (lambda m: packed(exchanged(m, "weights.safetensors", b"\xff" * 100)), "cannot be read"),
    "a version twice": (twice, "is unexpected here"),
    "two archives joined": (lambda m: packed(m) + packed(m), "after the end"),
    "a pipe's worth of nothing": (lambda m: packed(m)[:512], "ends within"),
    "a sparse file": (as_sparse, "not a regular file"),
    "an extended header": (extended, "not a regular file"),
    "a size below zero": (negative, "not a regular file|cut off"),
    "a name in Unicode": (lambda m: packed(renamed(m, "news/", "new\u017f/")), "not an archive|not a regular file"),
    "a name behind a zero": (lambda m: packed(renamed(m, "news/2", "news/2\0")), "belongs to no version"),
    "no domain.json": (lambda m: packed(without(m, "domain.json")), "domain.json has to come first"),
    "a domain of another name in its manifest": (facts(domain="other"), "another version's"),
    "a number that is no integer": (
        lambda m: packed(remade(m, lambda f: f.update(version=float(f["version"])))), "another version's",
    ),
    "a format of the future": (facts(format=2), "newer release"),
    "no method": (facts(method=None), "method must be a word"),
    "sentences that are no number": (facts(sentences="many"), "sentences a number"),
    "levels that are no numbers": (facts(levels=["8"]), "must be a list of integers"),
    "levels that do not fit": (facts(levels=[3]), "cannot be used: levels of"),
    "no date": (facts(created=5), "created is None, not a date"),
    "a date that is a word": (facts(created="yesterday"), "created is 'yesterday', not a date"),
    "an origin that is a word": (facts(origin="x"), "origin must have"),
    "an origin of a path": (
        facts(origin={"domain": "../x", "version": 1, "release": "", "imported": "2026-01-01T00:00:00+00:00"}),
        "origin has an invalid domain",
    ),
    "a report that is a list": (lambda m: packed(exchanged(m, "report.json", b"[]")), "not a JSON object"),
    "an array before an archive": (lambda m: packed(exchanged(m, "reference.npz", npy_before_npz())), "is not a .npz"),
    "a directory of hidden length": (
        lambda m: packed(exchanged(m, "reference.npz", npz_of_hidden_length())), "is not a .npz",
    ),
    "arrays over one another": (
        lambda m: packed(exchanged(m, "reference.npz", overlapping_npz())), "larger than the file",
    ),
    "weights that are not finite": (changed_weights(np.nan), "latents are not finite"),
    "weights that overflow": (changed_weights(3e38), "latents are not finite"),
    "knots out of order": (changed_npz("reference.npz", similarities=np.array([1.0, 0.0])), "must rise"),
    "knots without rates": (changed_npz("reference.npz", similarities=np.array([0.0, 1.0])), "cannot be used"),
    "a tail that is not finite": (changed_npz("reference.npz", scale=np.nan), "not finite"),
    "a tail that rises": (changed_npz("reference.npz", shape=-5.0, scale=-1.0), "do not fall|not finite"),
    "no pairs": (changed_npz("reference.npz", pairs=0.0), "cannot be used"),
    "a scalar that is a list": (changed_npz("reference.npz", shape=np.zeros(3)), "cannot be used"),
    "an interval without levels": (changed_npz("reference.npz", levels=np.zeros(0)), "cannot be used"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_what_comes_from_hostile_hands_is_refused_and_nothing_is_kept(
    name: str, members: Members, target: DomainStore, take: Take, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, said = HOSTILE[name]
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    with pytest.raises(InvalidInput, match=said):
        take(make(members), target)
    assert target.domains() == []
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("report.json", b'{"a": "' + b"x" * (1 << 18) + b'"}'),
        ("weights.safetensors", b"x" * (2 << 20)),
        ("reference.npz", b"x" * (1 << 18)),  # 8,000 levels; with 100,000, a threshold took 0.3 s
        ("manifest.json", b"{}" * (1 << 16)),
        ("domain.json", b"{}" * (1 << 18)),
        (CONTENTS, b"{}" * (1 << 16)),
    ],
)
def test_members_larger_than_any_of_their_kind_are_refused_unread(
    members: Members, target: DomainStore, take: Take, file: str, content: bytes
) -> None:
    name = next(name for name in members if name.rpartition("/")[2] == file)
    with pytest.raises(TooLarge):
        take(packed({**members, name: content}), target)
    assert target.domains() == []


def test_a_domain_may_have_the_name_of_the_archives_first_member(
    source: Path, members: Members, target: DomainStore, take: Take
) -> None:
    take(exported(source), target, rename=CONTENTS)
    out = io.BytesIO()
    export_domains(target, [(CONTENTS, [3])], out)
    assert [one.source for one in take(out.getvalue(), target, rename="again").versions] == [f"{CONTENTS}@3"]


def test_a_number_that_leaves_no_room_for_later_ones_is_not_kept(
    members: Members, target: DomainStore, take: Take
) -> None:
    highest = renamed(members, "news/3/", "news/999999999/")
    content = packed(remade(highest, lambda facts: facts.update(version=999_999_999 if facts["version"] == 3 else 2)))
    dry = take(content, target, dry_run=True)
    assert [one.version for one in take(content, target).versions] == [2, 3] == [one.version for one in dry.versions]


def test_the_job_of_another_store_does_not_count_as_one_of_this(
    members: Members, target: DomainStore, take: Take
) -> None:
    take(packed(remade(members, lambda facts: facts.update(job="0" * 32))), target)
    assert target.made_by("news", "0" * 32) is None


def test_the_same_versions_give_the_same_bytes(source: Path, target: DomainStore, take: Take) -> None:
    assert exported(source) == exported(source)
    take(exported(source), target)
    out, again = io.BytesIO(), io.BytesIO()
    export_domains(target, [("news", [2, 3])], out)
    export_domains(target, [("news", [2, 3])], again)
    assert out.getvalue() == again.getvalue()
    assert b"upload" not in out.getvalue()


def test_a_pipe_is_refused_with_the_remedy(target: DomainStore, take: Take, source: Path) -> None:
    read, write = os.pipe()
    os.close(write)
    with os.fdopen(read, "rb") as pipe, pytest.raises(InvalidInput, match="save it into a file first"):
        import_domains(pipe, target, EncodersOfStore(EncoderStore.at(source)))


class Deleting:
    """A store in which a version is deleted after its manifest was read and before its files are."""

    def __init__(self, storage: Any, version: int) -> None:
        self._storage, self._version = storage, version

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def files(self, domain: str, version: int, manifest: Any) -> Any:
        if version == self._version:
            self._storage.bury(domain, version)
        return self._storage.files(domain, version, manifest)


def test_a_version_that_is_deleted_during_an_export_is_left_out_whole(
    source: Path, target: DomainStore, take: Take
) -> None:
    take(exported(source), target)
    target.storage = cast(Any, Deleting(target.storage, 2))
    out = io.BytesIO()
    assert export_domains(target, [("news", [2, 3])], out) == (1, 1)
    assert {name.split("/")[1] for name in unpacked(out.getvalue()) if name.count("/") == 2} == {"3"}


@pytest.mark.parametrize("count", [2, 5])
def test_imports_at_once_add_each_version_once(
    count: int, source: Path, target: DomainStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, gate, begin = exported(source), threading.Barrier(count), Import._begin

    def begin_together(self: Import) -> None:
        begin(self)
        if not self.dry_run:
            gate.wait(60)  # neither has added anything, and both have looked at what is there

    monkeypatch.setattr(Import, "_begin", begin_together)

    def add(_: int) -> Imported:
        return import_domains(io.BytesIO(content), target, EncodersOfStore(EncoderStore.at(source)))

    with ThreadPoolExecutor(count) as pool:
        every = list(pool.map(add, range(count)))
    there = target.versions("news")
    assert there == [2, 3]
    assert [[one.version for one in imported.versions] for imported in every] == [there] * count
    assert sum(not one.there for imported in every for one in imported.versions) == len(there)
    for version in there:
        target.load("news", version)
    assert target.aliases("news", "").targets == {"duplicates": Target(fmr=0.01)}


class Full:
    """A store whose place is full after some versions."""

    def __init__(self, storage: Any, room: int) -> None:
        self._storage, self._room = storage, room

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def publish(self, domain: str, folder: Path, facts: Any, claim: Any, least: int) -> int:
        if not self._room:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._room -= 1
        return int(self._storage.publish(domain, folder, facts, claim, least))


def test_an_import_that_finds_the_place_full_leaves_whole_versions_and_goes_on_when_it_is_sent_again(
    source: Path, target: DomainStore, take: Take
) -> None:
    storage = target.storage
    target.storage = cast(Any, Full(storage, room=1))
    with pytest.raises(OSError, match="No space"):
        take(exported(source), target)
    target.storage = storage
    assert target.versions("news") == [2]
    assert [(one.version, one.there) for one in take(exported(source), target).versions] == [(2, True), (3, False)]


def test_an_import_holds_one_version_at_a_time(source: Path, tmp_path: Path) -> None:
    """Memory and disk: 60 domains take no more than ten."""
    domains = DomainStore(source)
    facts, files = domains.contents("news", 2)

    def peak(count: int) -> int:
        path, store = tmp_path / f"{count}.tar", DomainStore(tmp_path / str(count))
        many = {f"d{number}/2/{name}": content for number in range(count) for name, content in files.items()}
        ordered: Members = {CONTENTS: b'{"format": 1}'}
        for number in range(count):
            ordered[f"d{number}/domain.json"] = b"{}"
            ordered[f"d{number}/2/manifest.json"] = manifest_bytes({**facts, "domain": f"d{number}"})
            ordered |= {name: content for name, content in many.items() if name.startswith(f"d{number}/")}
        path.write_bytes(packed(ordered))
        del many, ordered
        tracemalloc.start()
        with path.open("rb") as file:
            import_domains(file, store, EncodersOfStore(EncoderStore.at(source)))
        with (tmp_path / f"{count}.out").open("wb") as out:
            export_domains(store, ((name, [2]) for name in store.names()), out)
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    peak(2)  # what is loaded once
    assert peak(60) < peak(10) + 500_000


def test_damaged_thresholds_and_aliases_are_left_out(members: Members, target: DomainStore, take: Take) -> None:
    described = {"aliases": {"x": 5}, "thresholds": {"Bad Name": {"fmr": 0.1}, "b": {"fmr": "1"}, "c": 3}}
    imported = take(packed({**members, "news/domain.json": json.dumps(described).encode()}), target)
    assert (imported.thresholds, imported.kept) == ([], ["news/Bad Name"])
    assert [one.was for one in imported.versions] == [None, None]


def test_a_damaged_version_is_no_backup(source: Path, tmp_path: Path) -> None:
    shutil.copytree(source, tmp_path / "store")
    report = tmp_path / "store/domains/news/2/report.json"
    report.write_bytes(report.read_bytes() + b" ")
    with pytest.raises(IsosimError, match=r"report.json"):
        exported(tmp_path / "store")
