"""Domains as files: what goes out comes in again, bit for bit; what is not an archive of ours adds nothing."""

import hashlib
import io
import json
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from service.adapters.domains.archive import CONTENTS, EncodersOfStore, Imported, export_domains, import_domains
from service.adapters.domains.store import DomainStore
from service.adapters.encoder.store import EncoderStore
from service.adapters.storage.artifacts import manifest_bytes, parsed_manifest
from service.core.errors import EncoderMismatch, InvalidInput, IsosimError, NotFound
from service.core.jobs.job import JobRequest
from service.core.scoring.advice import Target
from service.modelling.calibration.job import CalibrationInput, calibrate_job
from tests.objects import Objects, objects  # noqa: F401 - a fixture
from tests.text import sentences

Members = dict[str, bytes]


@pytest.fixture(scope="module")
def source(tiny_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`news@1`, deleted; `news@2`, whitened, previous; `news@3`, champion; a saved threshold."""
    store = tmp_path_factory.mktemp("source") / "store"
    shutil.copytree(tiny_store / "encoders", store / "encoders")
    domains, artifact = DomainStore(store), EncoderStore(store).find("tiny")
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
    export_domains(domains, wanted or {"news": domains.versions("news")}, out)
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
    encoders = EncodersOfStore(EncoderStore(source))
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
    export_domains(target, {"mine": [3]}, out)
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
    with pytest.raises(EncoderMismatch, match=r"news@2 was made for encoder other .* has not; there are: .*tiny"):
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


def crowded_npz() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for number in range(5000):
            archive.writestr(f"{number}.npy", b"")
    return out.getvalue()


def link(member: tarfile.TarInfo) -> None:
    if member.name.endswith("report.json"):
        member.type, member.linkname, member.size = tarfile.SYMTYPE, "/etc/passwd", 0


def hard_link(member: tarfile.TarInfo) -> None:
    if member.name.endswith("report.json"):
        member.type, member.linkname, member.size = tarfile.LNKTYPE, CONTENTS, 0


def renamed(members: Members, old: str, new: str) -> Members:
    return {name.replace(old, new): content for name, content in members.items()}


def without(members: Members, ending: str) -> Members:
    return {name: content for name, content in members.items() if not name.endswith(ending)}


HOSTILE: dict[str, tuple[Callable[[Members], bytes], str]] = {
    "empty": (lambda _: b"", "no archive"),
    "no tar": (lambda _: b"\x1f\x8b" + b"a sentence\n" * 1000, "no archive"),
    "cut off": (lambda m: packed(m)[: len(packed(m)) // 2], "no archive|cut off"),
    "contents missing": (lambda m: packed(without(m, CONTENTS)), "has to come first"),
    "contents alone": (lambda m: packed({CONTENTS: m[CONTENTS]}), "holds no version"),
    "a newer format": (lambda m: packed({**m, CONTENTS: json.dumps({"format": 9}).encode()}), "format 1, not 9"),
    "contents of another kind": (lambda m: packed({**m, CONTENTS: b"[1]"}), CONTENTS),
    "a path upwards": (lambda m: packed(renamed(m, "news/", "../news/")), "belongs to no version"),
    "an absolute path": (lambda m: packed(renamed(m, "news/", "/tmp/news/")), "belongs to no version"),  # noqa: S108
    "a name that is none": (lambda m: packed(renamed(m, "news/", "Ne ws/")), "belongs to no version"),
    "another file": (lambda m: packed({**m, "news/2/run.sh": b"rm"}), "belongs to no version"),
    "a symbolic link": (lambda m: packed(m, link), "no plain file"),
    "a hard link": (lambda m: packed(m, hard_link), "no plain file"),
    "a file that is missing": (lambda m: packed(without(m, "2/report.json")), "not complete"),
    "a file of no manifest": (lambda m: packed(without(m, "2/manifest.json")), "does not name it"),
    "the same versions twice": (lambda m: packed(m, times=2), "the same comes twice"),
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
    "files that are a path": (lambda m: packed(remade(m, lambda f: f.update(files={"../x": "0"}))), "names no files"),
    "a compressed array": (lambda m: packed(exchanged(m, "reference.npz", compressed_npz())), "compressed"),
    "an array that lies": (lambda m: packed(exchanged(m, "reference.npz", lying_npz())), "no array of numbers"),
    "a pickle": (lambda m: packed(exchanged(m, "reference.npz", pickled_npz())), "no array of numbers"),
    "thousands of arrays": (lambda m: packed(exchanged(m, "reference.npz", crowded_npz())), "of its own kind"),
    "no arrays": (lambda m: packed(exchanged(m, "reference.npz", b"nothing")), "cannot be read"),
    "arrays of another kind": (lambda m: packed(exchanged(m, "reference.npz", npz(a=np.arange(3)))), "cannot be read"),
    "weights that do not fit": (
        lambda m: packed(
            exchanged(m, "weights.safetensors", safetensors.numpy.save({"mean": np.zeros(8, np.float32)}))
        ),
        "do not fit",
    ),
    "weights that are none": (lambda m: packed(exchanged(m, "weights.safetensors", b"\xff" * 100)), "cannot be read"),
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


def test_damaged_thresholds_and_aliases_are_left_out(members: Members, target: DomainStore, take: Take) -> None:
    facts = json.loads(members[CONTENTS])
    facts["domains"]["news"] |= {
        "aliases": {"x": 5},
        "thresholds": {"Bad Name": {"fmr": 0.1}, "b": {"fmr": "1"}, "c": 3},
    }
    imported = take(packed({**members, CONTENTS: json.dumps(facts).encode()}), target)
    assert (imported.thresholds, imported.kept) == ([], ["news/Bad Name"])
    assert [one.was for one in imported.versions] == [None, None]


def test_a_damaged_version_is_no_backup(source: Path, tmp_path: Path) -> None:
    shutil.copytree(source, tmp_path / "store")
    report = tmp_path / "store/domains/news/2/report.json"
    report.write_bytes(report.read_bytes() + b" ")
    with pytest.raises(IsosimError, match=r"report.json"):
        exported(tmp_path / "store")
