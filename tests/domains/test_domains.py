"""Domains: whole records, whatever is written, killed, deleted or damaged, and their champions, listed and seeded."""

import io
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from isosim.domains import changes as changes_module
from isosim.domains.champions import Champions
from isosim.domains.domain import Domain, EncoderAliases, Version
from isosim.domains.history import RECENT, Author, Entry, author
from isosim.domains.seeding import seed_default
from isosim.domains.store import WEIGHTS, DomainStore, read_parts
from isosim.errors import Conflict, CorruptArtifact, NotFound
from isosim.scoring.advice import Target
from isosim.store.blobs import Blobs, opened
from isosim.store.records import TOMBSTONE
from tests.core.scoring.references import REFERENCE
from tests.store.conftest import EVERY_PLACE, Open
from tests.store.machines import FAULTS, Crashing, Watched, faulty, run_on
from tests.stores import keys_of

ENCODER, OTHER = "e" * 64, "f" * 64
NAMES = st.sampled_from(["a", "b-c"])
CREATED = "2026-01-01T00:00:00+00:00"


def publish(store: DomainStore, name: str, job: str | None = None, created: str = CREATED, **how: Any) -> Version:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "report.json").write_text("{}")
        Path(folder, "weights").write_bytes(b"1")
        return store.publish(name, Path(folder), Version(0, ENCODER, "minilm", "identity", {}, "", created, job), **how)


def always(_: Domain) -> bool:
    return True


class Machine(RuleBasedStateMachine):
    """Two writers and crashes, beside the records that were acknowledged."""

    make: Open

    def __init__(self) -> None:
        super().__init__()
        self.crashing = Crashing(type(self).make())
        self.store = DomainStore(self.crashing)
        self.other = DomainStore(self.crashing.blobs)
        self.watch, self.champions = self.other.watch(), Champions(self.other)
        self.killed = False  # since the last look: the change may not be in the log
        self.litter = False  # a killed process may have left files, and a damaged record its entries
        self.removing: set[str] = set()  # domains whose removal has not come to its end
        self.known: dict[str, Domain] = {}  # the domain at the last look
        self.uploads: dict[tuple[str, int], str] = {}  # of each number that was ever in a record
        self.entries: dict[str, dict[int, Entry]] = {}  # of each domain's history

    def is_hit(self, **_: Any) -> None:
        self.killed = self.litter = True

    def now(self, name: str) -> Domain:
        return self.known.get(name, Domain())

    @rule(fault=FAULTS, name=NAMES, promote=st.booleans(), job=st.sampled_from([None, "1", "2"]))
    @faulty
    def publishes(self, name: str, promote: bool, job: str | None) -> None:
        before = self.now(name)
        earlier = before.published_as("", job)
        version = publish(self.store, name, job, promote=lambda _: promote)
        if earlier is not None:
            assert version == earlier
        else:
            assert version.number == before.next
            assert (self.other.read(name).aliases.get(ENCODER, EncoderAliases()).champion == before.next) is promote

    @rule(name=NAMES, what=st.sampled_from(["publishes", "removes", "publishes for the same job"]))
    def publishes_while_another_changes_the_domain(self, name: str, what: str) -> None:
        turns, job, others = iter([False, True]), f"job {len(self.uploads)}", []  # the first call is before the upload
        self.looks(name)

        def promote(_: Domain) -> bool:
            if next(turns, False):
                others.append(publish(self.other, name, job if what == "publishes for the same job" else None))
                if what == "removes":
                    self.other.remove(name)
            return False

        before = self.now(name)
        if what == "removes":
            with pytest.raises(Conflict, match="was deleted"):
                publish(self.store, name, job, promote=promote)
            assert self.other.read(name).versions == {}
            return
        mine = publish(self.store, name, job, promote=promote)
        assert (mine == others[0]) if "same" in what else (mine.number == before.next + 1)

    def twice(self, change: Callable[..., Domain | None], name: str, *given: Any) -> Domain:
        """The domain after a change that a client repeats, because it has missed the answer."""
        revision = self.now(name).revision
        assert change(name, *given, revision=revision) == change(name, *given, revision=revision)
        return self.other.read(name)

    @rule(fault=FAULTS, name=NAMES, at=st.integers(0, 3))
    @faulty
    def promotes(self, name: str, at: int) -> None:
        before = self.now(name)
        number = [*sorted(before.versions), *[before.next] * 4][at]
        if number == before.next:
            with pytest.raises(NotFound):
                self.store.promote(name, ENCODER, number)
            return
        with pytest.raises(Conflict, match="another encoder"):
            self.store.promote(name, OTHER, number)
        after = self.twice(self.store.promote, name, ENCODER, number)
        assert after.aliases[ENCODER].champion == number
        if after != before:
            with pytest.raises(Conflict, match="revision"):
                self.store.set_target(name, "z", Target(0.5), revision=before.revision)

    @rule(fault=FAULTS, name=NAMES)
    @faulty
    def rolls_back(self, name: str) -> None:
        mine = self.now(name).served(ENCODER)
        if mine.previous is None:
            with pytest.raises(Conflict):
                self.store.rollback(name, ENCODER)
            return
        after = self.twice(self.store.rollback, name, ENCODER)
        assert after.aliases[ENCODER] == EncoderAliases(mine.previous, mine.champion, rolled_back=True)

    @rule(fault=FAULTS, name=NAMES, saved=st.sampled_from(["x", "y"]), rate=st.sampled_from([None, 0.01, 0.1]))
    @faulty
    def saves_a_target(self, name: str, saved: str, rate: float | None) -> None:
        before, target = self.now(name), None if rate is None else Target(rate)
        if not before.versions or (target is None and saved not in before.targets):
            with pytest.raises(NotFound):
                self.store.set_target(name, saved, target)
            return
        after = self.twice(self.store.set_target, name, saved, target)
        others = {key: one for key, one in before.targets.items() if key != saved}
        assert after.targets == others | ({} if target is None else {saved: target})

    @rule(fault=FAULTS, name=NAMES, keep=st.integers(1, 3))
    @faulty
    def prunes(self, name: str, keep: int) -> None:
        before = self.now(name)
        gone = self.store.prune(name, keep)
        assert set(self.store.read(name).versions) == set(before.versions) - set(gone)
        assert not {*gone} & {*before.named(), *sorted(before.versions)[-keep:]}
        assert len(before.versions) - len(gone) <= keep + 2

    @rule(fault=FAULTS, name=NAMES)
    @faulty
    def deletes(self, name: str) -> None:
        before = self.now(name)
        for number in before.named():
            with pytest.raises(Conflict, match="champion or previous"):
                self.store.delete(name, number)
        for number in sorted(before.versions.keys() - before.named())[:1]:
            assert number not in self.twice(self.store.delete, name, number).versions
            with pytest.raises(NotFound):
                self.store.delete(name, number)

    @rule(fault=FAULTS, name=NAMES)
    @faulty
    def removes(self, name: str) -> None:
        before, was_there = self.now(name), name in set(self.store.names())
        self.removing.add(name)
        self.store.remove(name)
        self.removing.discard(name)
        after = self.store.read(name)
        assert (after.versions, after.aliases, after.next) == ({}, {}, before.next)
        assert self.store.was_there(name) is bool(after.revision)
        if was_there:
            assert after.epoch > before.epoch
            with pytest.raises(Conflict, match="was deleted"):
                publish(self.store, name, epoch=before.epoch)

    @rule(name=NAMES, lost=st.sampled_from(["thresholds", "epoch", "all", "JSON"]), removing=st.booleans())
    def is_damaged_and_repaired_or_removed(self, name: str, lost: str, removing: bool) -> None:
        """Also the record of a deleted domain."""
        before, key = self.now(name), self.other.records.key(name)
        if not before.revision:
            return
        parts = orjson.loads(self.other.blobs.read(key)[0])
        damaged = {"all": b"{}", "JSON": b"\xff"}.get(lost, orjson.dumps(parts | {lost: "?"}))
        damaged += b" " * (len(damaged) == TOMBSTONE)  # the size of a deleted record, which no other has
        self.other.blobs.write(key, damaged)
        calls: list[Callable[[], object]] = [
            lambda: self.store.read(name), lambda: publish(self.store, name), lambda: self.store.prune(name, 1),
            lambda: self.store.promote(name, ENCODER, 1), lambda: self.store.delete(name, 1),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(CorruptArtifact, match=rf"domains/{name}\.json cannot be read"):
                call()
        assert self.champions.read()[name].damaged
        assert self.other.blobs.read(key)[0] == damaged
        self.entries.pop(name, None)  # those in the record may be lost
        numbered, self.litter, self.killed = not self.litter, True, True
        if removing:
            self.store.remove(name)
            assert self.other.read(name).versions == {}
            return
        after = self.store.repair(name)
        assert self.store.repair(name) == after == self.other.read(name)
        assert after.history[-1].what == "repaired"
        assert after.next >= before.next
        assert after.changes > before.changes
        assert after.revision > before.revision
        if lost == "thresholds":
            assert (after.epoch, after.aliases) == (before.epoch, before.aliases)
        else:  # as after a deletion, which may be lost
            assert after.epoch >= max(before.epoch, 1)
        if lost in parts or numbered:
            assert before.versions.items() <= after.versions.items()
        if name not in self.removing:
            files = {one.upload for one in after.versions.values()}
            assert {one.upload for one in before.versions.values()} <= files

    def looks(self, name: str) -> None:
        found = self.other.read(name)
        before = self.now(name)
        assert found.revision >= before.revision
        assert found.epoch >= before.epoch
        assert found.next >= before.next
        assert found.named() <= found.versions.keys()
        assert found.changes or name not in set(self.other.names())  # one that is only read or pruned is not created
        for number, version in found.versions.items():
            assert number == version.number < found.next
            if self.uploads.setdefault((name, number), version.upload) != version.upload:
                raise AssertionError(f"number {number} of {name} is used again")
            if number not in before.versions:
                with self.other.files(name, number) as (_, folder):
                    assert (folder / "weights").read_bytes() == b"1"
        entries = {entry.number: entry for entry in self.other.history(name)}
        assert list(entries) == sorted(entries, reverse=True)
        assert max(entries, default=0) == found.changes
        assert self.entries.get(name, {}).items() <= entries.items()
        assert len(found.history) <= 2 * 3 + 6  # one change has six entries at most
        self.entries[name] = entries
        self.known[name] = found

    @invariant()
    def what_was_acknowledged_is_there(self) -> None:
        before = dict(self.known)
        changed = self.watch.changes(["a", "b-c"])
        listed = self.champions.read()
        for name in ("a", "b-c"):
            self.looks(name)
            if name in before and before[name] != self.known[name] and not self.killed:
                assert name in changed
            champion = listed[name].champions.get(ENCODER) if name in listed else None
            assert (champion and champion.version) == self.known[name].served(ENCODER).champion
        self.killed = False
        assert {name for name in self.known if self.known[name].versions} <= set(self.other.names()) == set(listed)
        assert self.litter or list(self.other.garbage(-60)) == []

    def teardown(self) -> None:
        self.other.blobs.write("versions/a/unfinished/weights", b"1")
        assert list(self.other.garbage(60)) == []
        found = list(self.other.garbage(-60))
        assert 1 in [item.size for item in found if item.name.endswith("versions/a/unfinished/")]
        for item in found:
            item.remove()
        assert list(self.other.garbage(-60)) == []
        for name in ("a", "b-c"):
            for number in self.other.read(name).versions:
                with self.other.files(name, number):
                    pass
            self.other.remove(name)
        assert self.litter or list(self.other.blobs.list("versions/")) == []


@EVERY_PLACE
def test_a_domain_stays_whole_whoever_writes_and_dies(place: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isosim.domains.store.RECENT", 3)  # so that entries of the history leave the record
    monkeypatch.setattr("isosim.domains.store.BLOCK", 3)
    run_on(place, Machine, examples=60)


def test_a_listing_of_champions_reads_only_what_has_changed_also_in_a_new_process(blobs: Blobs) -> None:
    store, keys = DomainStore(blobs), list[str]()
    counting: Any = Watched(blobs, lambda operation, *given: keys.extend(given if operation == "read" else []))

    def listed(champions: Champions) -> dict[str, int | None]:
        keys.clear()
        found = ((name, one.champions.get(ENCODER)) for name, one in champions.read().items())
        return {name: None if champion is None else champion.version for name, champion in found}

    champions = Champions(DomainStore(counting))
    for name in ("b", "a"):
        publish(store, name, promote=always)
    publish(store, "c")
    assert list(listed(champions).items()) == [("a", 1), ("b", 1), ("c", None)]
    publish(store, "b", promote=always)
    store.remove("c")
    for again, summary in ((champions, []), (Champions(DomainStore(counting)), ["champions.json"])):
        assert (listed(again), keys) == ({"a": 1, "b": 2}, [*summary, "domains/b.json"])
        assert (listed(again), keys) == ({"a": 1, "b": 2}, [])
    blobs.write("champions.json", b"{")
    assert listed(Champions(store)) == {"a": 1, "b": 2}


def test_a_carried_default_calibration_is_seeded_once_unless_there_is_a_champion_or_it_is_damaged(
    place: Open, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store, carried = DomainStore(place()), DomainStore(opened(tmp_path_factory.mktemp("carried")))
    assert seed_default(store, carried, ENCODER) is None  # nothing is carried
    publish(carried, "default", promote=always)
    (damaged, *_) = keys_of(carried, "default", 1)
    content, _ = carried.blobs.read(damaged)
    carried.blobs.write(damaged, b"")
    with pytest.raises(CorruptArtifact):
        seed_default(store, carried, ENCODER)
    assert list(place().list("")) == []
    carried.blobs.write(damaged, content)
    with ThreadPoolExecutor(4) as pool:
        seeded = set(pool.map(lambda _: seed_default(DomainStore(place()), carried, ENCODER), range(4)))
    assert seeded <= {1, None}
    record = store.read("default")
    assert (list(record.versions), record.served(ENCODER).champion) == ([1], 1)
    assert record.versions[1].files == carried.read("default").versions[1].files
    assert seed_default(store, carried, ENCODER) is None
    assert store.read("default") == record
    store.change("default", lambda domain: replace(domain, aliases={}))  # as a repair may leave it
    assert seed_default(store, carried, ENCODER) == 1
    assert store.read("default").served(ENCODER).champion == 1


@pytest.mark.parametrize("missed", ["too many", "not in the log", "damaged"])
def test_a_reader_that_cannot_rely_on_the_log_of_changes_compares_all_domains(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, missed: str
) -> None:
    monkeypatch.setattr(changes_module, "KEPT", 2)
    store = DomainStore(blobs)
    watch = store.watch()
    publish(store, "a")
    assert watch.changes(["a", "b-c"]) == {"a", "b-c"}
    assert watch.changes(["a", "b-c"]) == set()
    if missed == "damaged":
        blobs.write(store.log.key, b"{")
    if missed == "not in the log":  # it failed, or the process was killed
        monkeypatch.setattr(store.log, "append", lambda name, revision: None)
    store.promote("a", ENCODER, 1)
    if missed == "too many":
        for _ in range(3):
            publish(store, "d")
    if missed == "not in the log":
        now = time.monotonic()
        assert watch.changes(["a", "b-c"]) == set()
        monkeypatch.setattr(time, "monotonic", lambda: now + changes_module.FULL_LOOK)
    assert watch.changes(["a", "b-c"]) - {"d"} == {"a"}
    assert watch.changes(["a", "b-c"]) == set()
    assert ("the log of changes begins anew" in caplog.text) is (missed == "damaged")


def test_a_history_names_each_change_and_outlives_the_record(blobs: Blobs) -> None:
    store = DomainStore(blobs)
    token = author.set(Author("key", request="r1"))
    try:
        publish(store, "a", promote=always)
        store.set_target("a", "x", Target(0.01))
        store.set_target("a", "x", None)
        publish(store, "a", promote=always)
        store.rollback("a", ENCODER)
        publish(store, "a")
        store.delete("a", 3)
        store.remove("a")
        publish(store, "a")
    finally:
        author.reset(token)
    entries = list(store.history("a"))[::-1]
    assert [(one.number, one.what, one.subject, one.before, one.after) for one in entries] == [
        (1, "version_published", "minilm", None, 1), (2, "promoted", "minilm", None, 1),
        (3, "threshold_saved", "x", None, {"fmr": 0.01}), (4, "threshold_deleted", "x", {"fmr": 0.01}, None),
        (5, "version_published", "minilm", None, 2), (6, "promoted", "minilm", 1, 2),
        (7, "rolled_back", "minilm", 2, 1), (8, "version_published", "minilm", None, 3),
        (9, "version_deleted", "minilm", 3, None), (10, "domain_deleted", None, 2, None),
        (11, "version_published", "minilm", None, 4),
    ]  # fmt: skip
    assert {(one.by, one.request, one.job) for one in entries} == {("key", "r1", None)}
    assert [entry.number for entry in store.history("a", before=3)] == [2, 1]


def test_damaged_side_records_stop_no_change(blobs: Blobs) -> None:
    """Blocks of the history, and the log of changes."""
    store = DomainStore(blobs)
    for _ in range(3):
        publish(store, "a", promote=always)
    for key in ("history/a/00000.json", "changes.json"):
        blobs.write(key, b"{")
    for number in range(1, 3 * RECENT):
        store.set_target("a", "x", Target(number / 100))
    assert RECENT < len(store.read("a").history) < 2 * RECENT  # they leave together, not one at each change
    store.delete("a", 1)
    assert [entry.number for entry in store.history("a")][-1] == 1  # the block was written anew
    assert store.log.read()


def test_versions_whose_numbers_are_lost_get_new_ones_in_the_order_of_their_creation(blobs: Blobs) -> None:
    """As after processes that were killed before they wrote the numbers into the manifests."""
    store, days = DomainStore(blobs), [3, 1, 4, 2]
    for day in days:
        publish(store, "a", created=CREATED.replace("01T", f"0{day}T"))
    for version in store.read("a").versions.values():
        store._write_manifest("a", replace(version, number=0), epoch=0)
    blobs.write("domains/a.json", b"{")
    created = {number: version.created for number, version in store.repair("a").versions.items()}
    assert min(created) > len(days)
    assert [created[number] for number in sorted(created)] == sorted(created.values())
    blobs.write("domains/a.json", b"{")
    assert store.repair("a").versions.keys() == created.keys()  # which have been written by now
    version = store.read("a").versions[max(created)]
    store._write_manifest("a", replace(version, number=0), epoch=0)
    sound = blobs.read("domains/a.json")[0]
    blobs.write("domains/a.json", sound.replace(b'"history":', b'"history": 1, "lost":'))
    assert store.repair("a").next == version.number + 1  # the number is in what is left of the record


@pytest.mark.parametrize("file", ["weights", "report.json"])
@pytest.mark.parametrize("content", [b"", b"?", None])
def test_a_damaged_file_of_a_version_is_named(blobs: Blobs, file: str, content: bytes | None) -> None:
    store = DomainStore(blobs)
    publish(store, "a")
    assert store.report("a", 1) == {}
    key = next(key for key in keys_of(store, "a", 1) if key.endswith(file))
    blobs.delete([key]) if content is None else blobs.write(key, content)
    with pytest.raises(CorruptArtifact, match=f"a file is missing|{file} does not match") as told:
        store.load("a", 1)
    assert key in str(told.value.place)
    with pytest.raises(CorruptArtifact, match=r"of 'a'") if file == "report.json" else nullcontext():
        store.report("a", 1)


def test_what_lies_elsewhere_is_no_file_of_a_version(blobs: Blobs) -> None:
    """Who may write the bucket must not write files of the servers."""
    store, record = DomainStore(blobs), publish(DomainStore(blobs), "a")
    blobs.write(store.records.key("b-c"), blobs.read(store.records.key("a"))[0])  # in the place of another
    with pytest.raises(CorruptArtifact, match="version 1 of 'b-c': a file is missing"):
        store.load("b-c", 1)
    for name in ("/victim", "../victim", ""):
        store.change("a", lambda domain: replace(domain, versions={1: replace(record, files={name: ""})}))  # noqa: B023
        with pytest.raises(CorruptArtifact, match="not the name of a file"):
            store.load("a", 1)


def test_what_cannot_be_read_is_corrupt_and_no_pickle_is_loaded(tmp_path: Path) -> None:
    def npz(**changes: Any) -> bytes:
        out, arrays = io.BytesIO(), REFERENCE.arrays() | changes
        np.savez(out, **{name: array for name, array in arrays.items() if array is not None})
        return out.getvalue()

    unreadable = {b"": "", b"text": "", b"PK\x03\x04 no zip": "", b"\x93NUMPY": ""}
    incomplete = {npz(**{missing: None}): missing for missing in REFERENCE.arrays()}
    pickled = {npz(similarities=np.array([{}], dtype=object)): "allow_pickle"}
    for name, contents in ((WEIGHTS, unreadable), ("reference.npz", unreadable | incomplete | pickled)):
        for content, told in contents.items():
            (tmp_path / name).write_bytes(content)
            with pytest.raises(CorruptArtifact, match=f"a version cannot be read.*{told}"):
                read_parts(tmp_path, [name], "a version")
