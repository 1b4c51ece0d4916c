"""Domains as files: what goes out comes in again, bit for bit; what is not an archive of ours adds nothing."""

import gc
import io
import json
import shutil
import tarfile
import tracemalloc
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from isosim.domains import archive
from isosim.domains.archive import CONTENTS, Imported, export_domains, import_domains, staging
from isosim.domains.domain import EncoderAliases
from isosim.domains.store import DomainStore
from isosim.encoders.store import EncoderArtifact, EncoderStore
from isosim.errors import CorruptArtifact, EncoderMismatch, InvalidInput, IsosimError, NotFound
from isosim.scoring.advice import Target
from isosim.scoring.calibration import DomainModel
from isosim.store.blobs import Blobs
from tests.core.scoring import references
from tests.store.conftest import in_memory
from tests.stores import calibrate, domains_of, keys_of, publish
from tests.text import sentences

Members = dict[str, bytes]
Change = Callable[[Members], bytes]  # makes an archive of what an export holds


@pytest.fixture(scope="module")
def source(tiny_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`news@1`, deleted; `news@2`, whitened, previous; `news@3`, champion; a saved threshold."""
    store = tmp_path_factory.mktemp("source") / "store"
    shutil.copytree(tiny_store / "encoders", store / "encoders")
    domains, artifact = domains_of(store), EncoderStore.at(store).find("tiny")
    publish(domains, "news", artifact, promote=False)
    calibrate(store, artifact, "news", "whitening", sentences(1000))
    publish(domains, "news", artifact, DomainModel(reference=references.REFERENCE, probability=references.MAP))
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
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        return {one.name: tar.extractfile(one).read() for one in tar}  # type: ignore[union-attr]


def packed(members: Members) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


@pytest.fixture
def target(blobs: Blobs) -> DomainStore:
    """An empty store of each kind; its encoders are those of `source`."""
    return DomainStore(blobs)


Take = Callable[..., Imported]


@pytest.fixture
def take(source: Path) -> Take:
    encoders = EncoderStore.at(source)
    return lambda content, store, kind=io.BytesIO, **options: import_domains(
        kind(content), store, encoders, **{"keep": 10} | options
    )


def test_a_store_that_was_lost_is_restored_by_one_import(
    source: Path, target: DomainStore, take: Take, tiny: EncoderArtifact
) -> None:
    """Files bit for bit, numbers, champions, previous versions and thresholds; repeated, it changes nothing."""
    before, content = domains_of(source).read("news"), exported(domains_of(source))
    imported = take(content, target, promote=True)
    found = [(one.source, one.version, one.was, one.there) for one in imported.versions]
    assert found == [("news@2", 2, "previous", False), ("news@3", 3, "champion", False)]
    assert (imported.thresholds, imported.kept, imported.promoted) == (["news/duplicates"], [], ["news@3"])
    after = target.read("news")
    assert after.aliases == before.aliases == {tiny.digest: EncoderAliases(3, 2)}
    assert (after.targets, after.next) == (before.targets, before.next)
    for number, version in before.versions.items():
        own = after.versions[number]
        assert (own.files, own.created, own.method) == (version.files, version.created, version.method)
        target.load("news", number)  # verifies
    again = take(content, target, promote=True)
    assert [(one.version, one.there) for one in again.versions] == [(2, True), (3, True)]
    assert (again.thresholds, again.kept, again.promoted) == ([], [], [])
    assert target.read("news") == after
    assert exported(domains_of(source)) == content  # the same versions give the same bytes
    assert unpacked(exported(target)).keys() == unpacked(content).keys()


def test_nothing_is_overwritten_or_promoted_unless_it_is_asked_for(
    source: Path, take: Take, tiny: EncoderArtifact
) -> None:
    """A number that was used is not given again, and a saved threshold stays. A champion becomes the previous one."""
    target = DomainStore(in_memory())
    champion, previous = (exported(domains_of(source), "news", number) for number in (3, 2))
    take(champion, target, rename="mine")
    assert target.read("mine").served(tiny.digest) == EncoderAliases()
    target.promote("mine", tiny.digest, 3)
    target.set_target("mine", "duplicates", Target(fmr=0.5))
    imported = take(previous, target, rename="mine", promote=True)
    assert [(one.source, one.domain, one.version) for one in imported.versions] == [("news@2", "mine", 4)]
    assert (imported.kept, imported.promoted) == (["mine/duplicates"], [])
    target.delete("mine", 4)
    assert [one.version for one in take(exported(domains_of(source)), target, rename="mine").versions] == [5, 3]
    target.promote("mine", tiny.digest, 5)
    assert take(champion, target, rename="mine", promote=True).promoted == ["mine@3"]
    assert target.read("mine").served(tiny.digest) == EncoderAliases(3, 5)


def test_of_many_versions_the_newest_come_in_and_those_with_a_name(take: Take, tiny: EncoderArtifact) -> None:
    many, target = DomainStore(in_memory()), DomainStore(in_memory())
    for number in range(1, 8):  # `auto` gives methods such as soft:0.811
        publish(many, "news", tiny, report={"n": number}, method=f"soft:0.{number}", promote=number in (1, 3))
    assert [one.version for one in take(exported(many), target, keep=2).versions] == [1, 3, 6, 7]
    assert target.read("news").versions[1].method == "soft:0.1"


def test_an_import_that_is_killed_leaves_whole_versions_and_is_finished_by_another(source: Path, take: Take) -> None:
    """After each version, and before the thresholds and champions."""
    content, target, steps = exported(domains_of(source)), DomainStore(in_memory()), count(1)

    class Dying(DomainStore):
        def change(self, *given: Any, **named: Any) -> Any:
            if next(steps) in (1, 3, 5):
                raise KeyboardInterrupt
            return super().change(*given, **named)

    for there in ([], [2], [2, 3]):
        with pytest.raises(KeyboardInterrupt):
            take(content, Dying(target.blobs), promote=True)
        for number in there:
            target.load("news", number)
        assert (list(target.read("news").versions), list(staging().glob("*"))) == (there, [])
        with ThreadPoolExecutor(4) as pool:  # several at once add each version once
            every = list(pool.map(lambda _: take(content, target, rename=f"d{len(there)}"), range(4)))  # noqa: B023
        assert {tuple(one.version for one in imported.versions) for imported in every} == {(2, 3)}
        assert sorted(target.read(f"d{len(there)}").versions) == [2, 3]
    assert take(content, target, promote=True).promoted == ["news@3"]
    assert target.read("news").targets == {"duplicates": Target(0.01)}


def test_a_missing_or_damaged_version_is_not_exported(source: Path, tmp_path: Path) -> None:
    shutil.copytree(source, tmp_path / "store")
    domains = domains_of(tmp_path / "store")
    with pytest.raises(NotFound):
        exported(domains, "news", 1)
    domains.blobs.write(keys_of(domains, "news", 2)[-1], b"{}")
    with pytest.raises(CorruptArtifact, match=f"does not match .*; {archive.REMEDY}"):
        exported(domains)


def test_a_version_that_is_deleted_during_an_export_is_left_out_whole(source: Path, take: Take) -> None:
    target, out = DomainStore(in_memory()), io.BytesIO()

    class Deleting(DomainStore):
        def files(self, name: str, number: Any) -> Any:
            if number == 3 and 2 in target.read(name).versions:
                target.delete(name, 2)
                target.delete(name, 3)
            return super().files(name, number)

    take(exported(domains_of(source)), target)
    take(exported(domains_of(source), "news", 3), target, rename="other")
    assert export_domains(Deleting(target.blobs), [("news", [2, 3]), ("other", [3])], out) == (1, 1)
    assert out.getvalue() == exported(target, "other")


RECORD = "news/domain.json"


def edited(contents: Mapping[str, Any], **facts: Any) -> Change:
    """With other contents of members, by the ends of their names, and other facts about each version in the record.

    A content is bytes, or None (without the member); a name that no member has is that of one more.
    """

    def change(members: Members) -> bytes:
        record, found = json.loads(members[RECORD]), dict[str, Any](members)
        record["versions"] = {number: version | facts for number, version in record["versions"].items()}
        for end, content in contents.items():
            for name in [name for name in members if name.endswith(end)] or [end]:
                found[name] = content
        if facts:
            found[RECORD] = json.dumps(record).encode()
        return packed({name: found[name] for name in found if found[name] is not None})

    return change


def named(old: str, new: str) -> Change:
    return lambda members: packed({name.replace(old, new): content for name, content in members.items()})


def folder_first(members: Members) -> bytes:
    header = tarfile.TarInfo(CONTENTS)
    header.type = tarfile.DIRTYPE
    return header.tobuf(tarfile.USTAR_FORMAT) + packed(members)


def damaged(damage: Callable[[bytes, int], bytes]) -> Change:
    """A second domain whose record's header, which begins at the given byte, is damaged."""

    def change(members: Members) -> bytes:
        content = packed(members | {name.replace("news/", "words/"): content for name, content in members.items()})
        return damage(content, content.index(b"words/domain.json\0"))

    return change


def linked(members: Members) -> bytes:
    header = tarfile.TarInfo("news/2/report.json")
    header.type, header.linkname = tarfile.SYMTYPE, "/etc/hostname"
    before = packed(dict([*members.items()][: [*members].index(header.name)]))
    return before.rstrip(b"\0").ljust(-(-len(before.rstrip(b"\0")) // 512) * 512, b"\0") + header.tobuf() + bytes(1024)


def far(members: Members) -> bytes:
    record = json.loads(members[RECORD])
    version = record["versions"].pop("2") | {"number": 10**12}
    return packed(members | {RECORD: json.dumps(record | {"versions": {str(10**12): version}}).encode()})


class Refused(NamedTuple):
    change: Change
    said: str
    error: type[IsosimError] = InvalidInput
    options: Mapping[str, Any] = {}  # of the import


REFUSED = {
    "empty": Refused(lambda _: b"", "not an archive"),
    "cut off": Refused(lambda m: packed(m)[: len(packed(m)) // 2], "not an archive|cut off"),
    "cut off in the first file": Refused(lambda m: packed(m)[:512], "not an archive"),
    "cut off before a second domain": Refused(damaged(lambda file, at: file[:at]), "has no end"),
    "cut off in its header": Refused(damaged(lambda file, at: file[: at + 300]), "damaged header"),
    "a wrong bit in its header": Refused(
        damaged(lambda file, at: file[:at] + bytes([file[at] ^ 1]) + file[at + 1 :]), "damaged header"
    ),
    "its header lost": Refused(damaged(lambda file, at: file[:at] + bytes(512) + file[at + 512 :]), "damaged header"),
    "a link": Refused(linked, "in the place of news/2"),
    "a number that no request can name": Refused(far, "must have its number"),
    "another encoder": Refused(edited({}, encoder_id="other"), "news@2 was .* other .* has: .*tiny", EncoderMismatch),
    "another digest": Refused(edited({}, encoder="0" * 64), "which this store does not have", EncoderMismatch),
    "contents missing": Refused(edited({CONTENTS: None}), f"in the place of {CONTENTS}"),
    "contents alone": Refused(lambda m: packed({CONTENTS: m[CONTENTS]}), "holds no version"),
    "a newer format": Refused(edited({CONTENTS: b'{"format": 9}'}), "format 2, not 9"),
    "contents of another kind": Refused(edited({CONTENTS: b"[1]"}), "not a JSON object"),
    "a path upwards": Refused(named("news/", "../news/"), "does not belong there"),
    "another file": Refused(edited({"news/4/run.sh": b"rm"}), "does not belong there"),
    "a missing file": Refused(edited({"2/report.json": None}), "in the place of news/2/report.json"),
    "a file that was changed": Refused(edited({"2/report.json": b"{}"}), "does not match"),
    "no record": Refused(edited({RECORD: None}), "does not belong there"),
    "a record of nothing": Refused(edited({RECORD: b"{}"}), "names no version"),
    "a folder in place of a file": Refused(folder_first, f"in the place of {CONTENTS}"),
    "a number that is another one": Refused(edited({}, number=7), "must have its number"),
    "an encoder that is a path": Refused(edited({}, encoder_id="../../x"), "does not have", EncoderMismatch),
    "files that are a path": Refused(edited({}, files={"../x": "0"}), "only files of a version"),
    "no method": Refused(edited({}, method=None), "does not describe a domain"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_may_not_come_in_is_refused_and_nothing_is_kept(name: str, members: Members, take: Take) -> None:
    refused, target = REFUSED[name], DomainStore(in_memory())
    content = refused.change(members)
    with pytest.raises(refused.error, match=refused.said):
        take(content, target, **refused.options)
    assert list(target.blobs.list("")) == []
    assert not list(staging().glob("*"))


def test_versions_of_an_encoder_that_is_not_there_are_left_out_and_named(members: Members, take: Take) -> None:
    others = {name.replace("news/", "words/"): content for name, content in members.items()}
    record = json.loads(others["words/domain.json"])
    for version in record["versions"].values():
        version["encoder_id"] = "twin"
    target = DomainStore(in_memory())
    others["words/domain.json"] = json.dumps(record).encode()
    imported = take(packed(others | members), target, promote=True)
    assert {one.domain for one in imported.versions} == {"news"}
    numbers = [reason.partition(" was made for encoder twin")[0] for reason in imported.left_out]
    assert numbers == [f"words@{number}" for number in sorted(map(int, record["versions"]))]
    assert [*target.names()] == ["news"]


def test_damaged_thresholds_and_aliases_are_left_out(members: Members, take: Take, tiny: EncoderArtifact) -> None:
    record, target = json.loads(members[RECORD]), DomainStore(in_memory())
    record["aliases"] = {tiny.digest: {"champion": 9, "previous": 2}, "0" * 64: {"champion": 2}}
    record["thresholds"] = {"Bad Name": {"fmr": 0.1}, "b": {"fmr": "1"}}
    imported = take(packed(members | {RECORD: json.dumps(record).encode()}), target, promote=True)
    assert [one.version for one in imported.versions] == [2, 3]
    assert (imported.thresholds, imported.kept, imported.promoted) == ([], ["news/Bad Name"], [])
    assert target.read("news").aliases == {}


def test_an_import_and_an_export_hold_one_version_at_a_time(members: Members, take: Take, tmp_path: Path) -> None:
    gc.set_threshold(700, 10, 10)  # an app that another test ran in this process has made collections rare

    def peak(count: int, attempt: int = 1) -> int:
        path, store = tmp_path / f"{count}.tar", domains_of(tmp_path / f"{count}-{attempt}")
        many = {name.replace("news/", f"d{n}/"): content for n in range(count) for name, content in members.items()}
        path.write_bytes(packed(many))
        del many
        tracemalloc.start()
        with path.open("rb") as file, (tmp_path / "out").open("wb") as out:
            take(file, store, kind=lambda opened: opened)
            export_domains(store, ((name, [2, 3]) for name in store.names()), out)
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    peak(1)  # what is loaded once
    size = len(packed(members))
    bound = peak(2) + 3 * size
    assert any(peak(8, attempt) < bound for attempt in range(3))  # other threads of the process allocate too
