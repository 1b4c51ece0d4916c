"""Domains as files: what goes out comes in again, bit for bit; what is not an archive of ours adds nothing."""

import hashlib
import io
import json
import shutil
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from isosim.domains.archive import CONTENTS, EncodersOfStore, Imported, export_domains, import_domains, staging
from isosim.domains.domain import EncoderAliases
from isosim.domains.store import DomainStore
from isosim.encoders.store import EncoderArtifact, EncoderStore
from isosim.errors import Conflict, EncoderMismatch, InvalidInput, IsosimError, NotFound, TooLarge
from isosim.fitting.job import CalibrationInput, calibrate_job
from isosim.jobs.job import JobRequest
from isosim.scoring.advice import Target
from isosim.store.blobs import Blobs
from tests.store.conftest import Open
from tests.store.machines import Crashing, Killed
from tests.stores import domains_of, publish
from tests.text import sentences

Members = dict[str, bytes]
Change = Callable[[Members], bytes]


@pytest.fixture(scope="module")
def source(tiny_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`news@1`, deleted; `news@2`, whitened, previous; `news@3`, champion; a saved threshold."""
    store = tmp_path_factory.mktemp("source") / "store"
    shutil.copytree(tiny_store / "encoders", store / "encoders")
    domains, artifact = domains_of(store), EncoderStore.at(store).find("tiny")
    texts = sentences(1000)
    for method in ("identity", "whitening", "identity"):
        wanted = JobRequest("news", artifact.digest, artifact.id, method, "always", sentences=len(texts))
        given = CalibrationInput(texts, [])
        calibrate_job(wanted, given, artifact, domains, lambda *_: None, threads=1).publish(domains)
    domains.delete("news", 1)
    domains.set_target("news", "duplicates", Target(fmr=0.01))
    return store


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture(scope="module")
def members(source: Path) -> Members:
    """What an export of it holds, by name."""
    return unpacked(exported(domains_of(source)))


def exported(domains: DomainStore, name: str = "news", *numbers: int) -> bytes:
    out = io.BytesIO()
    export_domains(domains, [(name, numbers or sorted(domains.read(name).versions))], out)
    return out.getvalue()


def unpacked(content: bytes) -> Members:
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        return {one.name: archive.extractfile(one).read() for one in archive}  # type: ignore[union-attr]


def packed(members: Members, **options: Any) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", **{"format": tarfile.USTAR_FORMAT} | options) as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


@pytest.fixture
def target(blobs: Blobs) -> DomainStore:
    """An empty store of each kind; its encoders are those of `source`."""
    return DomainStore(blobs)


@pytest.fixture
def folder(tmp_path: Path) -> DomainStore:
    return domains_of(tmp_path / "target")


Take = Callable[..., Imported]


@pytest.fixture
def take(source: Path) -> Take:
    encoders = EncodersOfStore(EncoderStore.at(source))
    return lambda content, store, **options: import_domains(
        io.BytesIO(content) if isinstance(content, bytes) else content, store, encoders, **{"keep": 10} | options
    )


def test_a_store_that_was_lost_is_restored_by_one_import(
    source: Path, target: DomainStore, take: Take, tiny: EncoderArtifact
) -> None:
    """Files bit for bit, numbers, champions, previous versions and thresholds; repeated, it changes nothing."""
    before, content = domains_of(source).read("news"), exported(domains_of(source))
    dry = take(content, target, promote=True, dry_run=True)
    assert list(target.names()) == []
    imported = take(content, target, promote=True)
    assert asdict(imported) == asdict(dry)
    found = [(one.source, one.version, one.was, one.there) for one in imported.versions]
    assert found == [("news@2", 2, "previous", False), ("news@3", 3, "champion", False)]
    assert (imported.thresholds, imported.kept, imported.promoted) == (["news/duplicates"], [], ["news@3"])
    after = target.read("news")
    assert after.aliases == before.aliases == {tiny.digest: EncoderAliases(3, 2)}
    assert (after.targets, after.next) == (before.targets, before.next)
    for number, version in before.versions.items():
        own = after.versions[number]
        assert (own.files, own.created, own.method) == (version.files, version.created, version.method)
        assert own.origin is not None
        assert (own.origin.domain, own.origin.version) == ("news", number)
        with target.files("news", number):  # verifies
            pass
    again = take(content, target, promote=True)
    assert [(one.version, one.there) for one in again.versions] == [(2, True), (3, True)]
    assert (again.thresholds, again.kept, again.promoted) == ([], [], [])
    assert target.read("news") == after
    assert exported(domains_of(source)) == content  # the same versions give the same bytes
    assert unpacked(exported(target)).keys() == unpacked(content).keys()


def test_nothing_is_overwritten_or_promoted_unless_it_is_asked_for(
    source: Path, target: DomainStore, take: Take, tiny: EncoderArtifact
) -> None:
    """A number that was used is not given again, and a saved threshold stays. A champion becomes the previous one."""
    take(exported(domains_of(source), "news", 3), target, rename="mine")
    assert target.read("mine").served(tiny.digest) == EncoderAliases()
    target.promote("mine", tiny.digest, 3)
    target.set_target("mine", "duplicates", Target(fmr=0.5))
    imported = take(exported(domains_of(source), "news", 2), target, rename="mine", promote=True)
    assert [(one.source, one.domain, one.version) for one in imported.versions] == [("news@2", "mine", 4)]
    assert (imported.kept, imported.promoted) == (["mine/duplicates"], [])
    target.delete("mine", 4)
    assert [one.version for one in take(exported(domains_of(source)), target, rename="mine").versions] == [5, 3]
    target.promote("mine", tiny.digest, 5)
    assert take(exported(domains_of(source), "news", 3), target, rename="mine", promote=True).promoted == ["mine@3"]
    assert target.read("mine").served(tiny.digest) == EncoderAliases(3, 5)


def test_of_many_versions_the_newest_come_in_and_those_with_a_name(
    folder: DomainStore, take: Take, tiny: EncoderArtifact, tmp_path: Path
) -> None:
    many = domains_of(tmp_path / "many")
    for number in range(1, 8):  # `auto` gives methods such as soft:0.811
        publish(many, "news", tiny, report={"n": number}, method=f"soft:0.{number}", promote=number in (1, 3))
    assert [one.version for one in take(exported(many), folder, keep=2).versions] == [1, 3, 6, 7]
    assert folder.read("news").versions[1].method == "soft:0.1"


def test_an_import_that_is_killed_at_any_step_leaves_whole_versions_and_is_finished_by_another(
    source: Path, take: Take, place: Open
) -> None:
    content = exported(domains_of(source), "news", 2)
    step, ended = 0, False
    while not ended:
        step += 1
        name, crashing = f"d{step}", Crashing(place())
        crashing.left = step
        try:
            take(content, DomainStore(crashing), rename=name, promote=True)
            ended = True
        except Killed:
            target = DomainStore(place())
            for number in target.read(name).versions:
                target.load(name, number)
            take(content, target, rename=name, promote=True)
            assert (list(target.read(name).versions), target.read(name).targets) == ([2], {"duplicates": Target(0.01)})
    assert step > 8
    assert not list(staging().glob("*"))
    used = {f"versions/d{n}/{v.upload}" for n in range(step + 1) for v in target.read(f"d{n}").versions.values()}
    left = {one.name.removeprefix(f"{target.blobs.address}/").removesuffix("/") for one in target.garbage(-1)}
    there = {entry.key.rpartition("/")[0] for entry in target.blobs.list("versions/")}
    assert there == used | left


def test_imports_at_once_add_each_version_once(source: Path, target: DomainStore, take: Take) -> None:
    content = exported(domains_of(source))
    with ThreadPoolExecutor(4) as pool:
        every = list(pool.map(lambda _: take(content, target, promote=True), range(4)))
    assert sorted(target.read("news").versions) == [2, 3]
    assert {tuple(one.version for one in imported.versions) for imported in every} == {(2, 3)}
    assert target.read("news").targets == {"duplicates": Target(fmr=0.01)}


@pytest.mark.parametrize(
    ("why", "error", "said"),
    [
        ("stopped", Conflict, "was stopped"),
        ("permit", IsosimError, "mine is not yours"),
        ("pipe", InvalidInput, "save it into a file first"),
        ("encoder id", EncoderMismatch, r"news@2 was made for encoder other .* not have; it has: .*tiny"),
        ("encoder", EncoderMismatch, "which this store does not have"),
    ],
)
def test_what_may_not_come_in_is_refused_before_anything_is_added(
    why: str, error: type[IsosimError], said: str, members: Members, folder: DomainStore, take: Take
) -> None:
    asked = count(1)

    def permit(domain: str) -> None:
        if why == "permit":
            raise IsosimError(f"{domain} is not yours")

    changes = {"encoder id": facts(encoder_id="other"), "encoder": facts(encoder="0" * 64)}
    content = changes.get(why, packed)(members)
    file = Pipe(content) if why == "pipe" else io.BytesIO(content)
    with pytest.raises(error, match=said):
        take(file, folder, rename="mine", permit=permit, proceed=lambda: next(asked) < 4 or why != "stopped")
    assert next(asked) == 5 or why != "stopped"
    assert list(folder.names()) == []


class Pipe(io.BytesIO):
    def seekable(self) -> bool:
        return False


def test_what_cannot_be_exported_is_said(source: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        exported(domains_of(source), "news", 1)
    shutil.copytree(source, tmp_path / "store")
    damaged = domains_of(tmp_path / "store")
    (key,) = [key for key in damaged.keys("news", 2) if key.endswith("report.json")]
    damaged.blobs.write(key, b"{}")
    with pytest.raises(IsosimError, match=r"report\.json"):
        exported(damaged)


def test_a_version_that_is_deleted_during_an_export_is_left_out_whole(
    source: Path, target: DomainStore, take: Take
) -> None:
    take(exported(domains_of(source)), target)

    class Deleting(DomainStore):
        def files(self, name: str, number: int) -> Any:
            if number == 3 and 2 in target.read(name).versions:
                target.delete(name, 2)
                target.delete(name, 3)
            return super().files(name, number)

    take(exported(domains_of(source), "news", 3), target, rename="other")
    out = io.BytesIO()
    wanted = [("news", [2, 3]), ("other", [3])]
    assert export_domains(Deleting(target.blobs), wanted, out) == (1, 1)
    assert {name.split("/")[0] for name in unpacked(out.getvalue())} == {CONTENTS, "other"}


def remade(members: Members, change: Callable[[dict[str, Any]], object]) -> Members:
    """With other facts about each version."""
    record = json.loads(members["news/domain.json"])
    for version in record["versions"].values():
        change(version)
    return members | {"news/domain.json": json.dumps(record).encode()}


def facts(**changes: Any) -> Change:
    return lambda members: packed(remade(members, lambda one: one.update(changes)))


def exchanged(file: str, content: bytes) -> Change:
    """With another content of a file of the versions that have it, whose hash the record names."""

    def change(members: Members) -> bytes:
        found = {name: content if name.endswith(f"/{file}") else old for name, old in members.items()}
        digest = hashlib.sha256(content).hexdigest()
        return packed(remade(found, lambda one: one["files"].update({file: digest} if file in one["files"] else {})))

    return change


def without(members: Members, ending: str) -> Members:
    return {name: content for name, content in members.items() if not name.endswith(ending)}


def renamed(old: str, new: str) -> Change:
    return lambda members: packed({name.replace(old, new): content for name, content in members.items()})


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


def npy_before_npz() -> bytes:
    """numpy looks at the beginning and reads one array; zipfile looks at the end and reads an archive."""
    before = io.BytesIO()
    np.save(before, np.zeros(8))
    return before.getvalue() + npz(similarities=np.arange(3.0))


def crowded_npz() -> bytes:
    """Many entries of the directory name the same array."""
    content = npz(similarities=np.zeros(1000))
    start = int.from_bytes(content[-6:-2], "little")
    return (
        content[:start]
        + content[start:-22] * 100
        + content[-22:-14]
        + b"\x64\0\x64\0"
        + (len(content[start:-22]) * 100).to_bytes(4, "little")
        + content[-6:]
    )


def changed_npz(file: str, **arrays: Any) -> Change:
    """With other arrays in a part of each version that has it, or with functions of those that are there."""

    def change(members: Members) -> bytes:
        old = next(content for name, content in members.items() if name.endswith(f"/{file}"))
        with np.load(io.BytesIO(old)) as before:
            new = {name: one(before[name]) if callable(one) else one for name, one in arrays.items()}
            return exchanged(file, npz(**{**before, **new}))(members)

    return change


def not_finite(members: Members) -> bytes:
    old = next(content for name, content in members.items() if name.endswith("/weights.safetensors"))
    weights = safetensors.numpy.load(old)
    weights |= {name: array * np.float32("nan") for name, array in weights.items() if array.dtype == np.float32}
    return exchanged("weights.safetensors", safetensors.numpy.save(weights))(members)


def typed(kind: bytes, size: int = 0) -> Change:
    """With a header of another type, which says that its content has `size` bytes, before everything else."""

    def change(members: Members) -> bytes:
        header = tarfile.TarInfo("x")
        header.type, header.size, header.linkname = kind, size, CONTENTS
        return header.tobuf(tarfile.GNU_FORMAT) + packed(members)

    return change


REFERENCE = "reference.npz"
HOSTILE: dict[str, tuple[Change, str]] = {
    "empty": (lambda _: b"", "not an archive"),
    "no tar": (lambda _: b"\x1f\x8b" + b"a sentence\n" * 1000, "not an archive"),
    "cut off": (lambda m: packed(m)[: len(packed(m)) // 2], "not an archive|cut off"),
    "cut off in the first file": (lambda m: packed(m)[:512], "ends within"),
    "contents missing": (lambda m: packed(without(m, CONTENTS)), "has to come first"),
    "contents alone": (lambda m: packed({CONTENTS: m[CONTENTS]}), "holds no version"),
    "a newer format": (lambda m: packed({**m, CONTENTS: json.dumps({"format": 9}).encode()}), "format 2, not 9"),
    "contents of another kind": (lambda m: packed({**m, CONTENTS: b"[1]"}), "not a JSON object"),
    "a path upwards": (renamed("news/", "../news/"), "does not belong there"),
    "a name in Unicode": (renamed("news/", "new\u017f/"), "not an archive|not a regular file"),
    "a name behind a zero": (renamed("news/2", "news/2\0"), "in the place of"),
    "another file": (lambda m: packed({**m, "news/4/run.sh": b"rm"}), "does not belong there"),
    "a file that is missing": (lambda m: packed(without(m, "2/report.json")), "in the place of news/2/report.json"),
    "no record": (lambda m: packed(without(m, "domain.json")), "does not belong there"),
    "the same domain twice": (lambda m: packed({**m, "news/domain.json": b"{}"}), "names no version"),
    "two archives joined": (lambda m: packed(m) + packed(m), "after the end"),
    "a symbolic link": (typed(tarfile.SYMTYPE), "not a regular file"),
    "a sparse file of a terabyte": (typed(tarfile.GNUTYPE_SPARSE, 1 << 40), "not a regular file"),
    "a long name of 400 MB": (typed(tarfile.GNUTYPE_LONGNAME, 400_000_000), "not a regular file"),
    "a size that no file has": (typed(tarfile.REGTYPE, 1 << 80), "not a regular file"),
    "a size below zero": (typed(tarfile.REGTYPE, -512), "not a regular file"),  # it would be read for ever
    "a file that was changed": (lambda m: packed({**m, "news/2/report.json": b"{}"}), "does not match"),
    "a record of another kind": (lambda m: packed({**m, "news/domain.json": b"[]"}), "not a JSON object"),
    "20,000 entries that are not versions": (
        lambda m: packed({**m, "news/domain.json": json.dumps({"versions": {n: {} for n in range(20_000)}}).encode()}),
        "domain: [1-9] validation error",
    ),
    "a number that is another one": (facts(number=7), "must have its number"),
    "an encoder that is a path": (facts(encoder_id="../../x"), "names no encoder"),
    "files that are a path": (facts(files={"../x": "0"}), "only files of a version"),
    "no method": (facts(method=None), "does not describe a domain"),
    "sentences that are no number": (facts(sentences="many"), "does not describe a domain"),
    "levels that do not fit": (facts(levels=[3]), "cannot be used: levels of"),
    "no date": (facts(created="yesterday"), "created is 'yesterday', not a date"),
    "an origin of a path": (
        facts(origin={"domain": "../x", "version": 1, "release": "", "imported": "2026-01-01T00:00:00+00:00"}),
        "must have an origin",
    ),
    "a report that is a list": (exchanged("report.json", b"[]"), "not a JSON object"),
    "a compressed array": (exchanged(REFERENCE, compressed_npz()), "compressed"),
    "an array that lies": (exchanged(REFERENCE, lying_npz()), "not an array of numbers"),
    "a pickle": (exchanged(REFERENCE, npz(similarities=np.array([{}], dtype=object))), "not an array of numbers"),
    "no arrays": (exchanged(REFERENCE, b"nothing"), "is not a .npz"),
    "arrays of another kind": (exchanged(REFERENCE, npz(a=np.arange(3))), "does not belong there"),
    "an array before an archive": (exchanged(REFERENCE, npy_before_npz()), "is not a .npz"),
    "arrays over one another": (exchanged(REFERENCE, crowded_npz()), "does not belong there|cannot be read"),
    "a reference of 100 levels": (changed_npz(REFERENCE, levels=np.logspace(-1, -5, 100)), "at most"),
    "texts that the encoder does not read": (  # it reads 32 tokens
        changed_npz("domain_test.npz", centres=lambda old: np.append(old[:-1], np.log(32_000))), "more than 32 tokens",
    ),
    "weights that do not fit": (
        exchanged("weights.safetensors", safetensors.numpy.save({"mean": np.zeros(8, np.float32)})), "do not fit",
    ),
    "weights of bytes 255": (exchanged("weights.safetensors", b"\xff" * 100), "cannot be read"),
    "weights that are not finite": (not_finite, "latents are not finite"),
    "knots out of order": (changed_npz(REFERENCE, similarities=np.array([1.0, 0.0])), "must rise"),
    "a tail that is not finite": (changed_npz(REFERENCE, scale=np.nan), "not finite"),
    "a tail that rises": (changed_npz(REFERENCE, shape=-5.0, scale=-1.0), "do not fall|not finite"),
    "no pairs": (changed_npz(REFERENCE, pairs=0.0), "cannot be used"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_what_comes_from_hostile_hands_is_refused_without_memory_and_nothing_is_kept(
    name: str, members: Members, folder: DomainStore, take: Take
) -> None:
    make, said = HOSTILE[name]
    content = make(members)
    tracemalloc.start()
    with pytest.raises(InvalidInput, match=said):
        take(content, folder)
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert used < 20_000_000
    assert list(folder.blobs.list("")) == []
    assert not list(staging().glob("*"))


@pytest.mark.parametrize("file", ["report.json", "weights.safetensors", REFERENCE, "domain.json", CONTENTS])
def test_what_is_larger_than_anything_of_its_kind_is_refused(
    file: str, members: Members, folder: DomainStore, take: Take
) -> None:
    large = {name: b" " * (5 << 20) if name.endswith(file) else content for name, content in members.items()}
    with pytest.raises(TooLarge, match="at most"):
        take(packed(large), folder)
    assert list(folder.names()) == []


def test_a_number_that_leaves_no_room_for_later_ones_is_not_kept(
    members: Members, folder: DomainStore, take: Take
) -> None:
    highest = {name.replace("news/3/", "news/999999999/"): content for name, content in members.items()}
    record = json.loads(members["news/domain.json"])
    record["versions"] = {
        "2": record["versions"]["2"], "999999999": record["versions"]["3"] | {"number": 999_999_999},
    }  # fmt: skip
    content = packed(highest | {"news/domain.json": json.dumps(record).encode()})
    dry = take(content, folder, dry_run=True)
    assert [one.version for one in take(content, folder).versions] == [2, 3] == [one.version for one in dry.versions]


def test_damaged_thresholds_and_aliases_are_left_out(
    members: Members, folder: DomainStore, take: Take, tiny: EncoderArtifact
) -> None:
    record = json.loads(members["news/domain.json"])
    record["aliases"] = {tiny.digest: {"champion": 9, "previous": 3}, "0" * 64: {"champion": 3}}
    record["thresholds"] = {"Bad Name": {"fmr": 0.1}, "b": {"fmr": "1"}}
    imported = take(packed(members | {"news/domain.json": json.dumps(record).encode()}), folder, promote=True)
    assert (imported.thresholds, imported.kept, imported.promoted) == ([], ["news/Bad Name"], [])
    assert folder.read("news").aliases == {}


def test_an_import_holds_one_version_at_a_time(members: Members, source: Path, tmp_path: Path) -> None:
    """Memory: 15 domains take no more than five."""

    def peak(count: int) -> int:
        path, store = tmp_path / f"{count}.tar", domains_of(tmp_path / str(count))
        many: Members = {CONTENTS: members[CONTENTS]}
        for number in range(count):
            own = [(name.replace("news/", f"d{number}/"), content) for name, content in members.items()]
            many |= {name: content for name, content in own if name != CONTENTS}
        path.write_bytes(packed(many))
        del many
        tracemalloc.start()
        with path.open("rb") as file:
            import_domains(file, store, EncodersOfStore(EncoderStore.at(source)), keep=10)
        with (tmp_path / f"{count}.out").open("wb") as out:
            export_domains(store, ((name, [2, 3]) for name in store.names()), out)
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    peak(2)  # what is loaded once
    assert peak(15) < peak(5) + 300_000
