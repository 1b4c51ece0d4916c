"""Domains: whole records, whatever is written, killed, deleted or damaged; in a folder and in buckets."""

import contextlib
import logging
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from isosim.domains import changes as changes_module
from isosim.domains.domain import Domain, EncoderAliases, Version
from isosim.domains.history import RECENT, Author, Entry, author
from isosim.domains.store import DomainStore
from isosim.errors import Conflict, CorruptArtifact, InvalidInput, NotFound, UnknownDomain
from isosim.scoring.advice import Target
from isosim.store.blobs import Blobs, Changed
from tests.store.conftest import Open
from tests.store.machines import Crashing, Killed, run_on

ENCODER = "e" * 64
NAMES = st.sampled_from(["a", "b-c"])
CREATED = "2026-01-01T00:00:00+00:00"


def publish(store: DomainStore, name: str, job: str | None = None, created: str = CREATED, **how: Any) -> Version:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "report.json").write_text("{}")
        Path(folder, "weights").write_bytes(b"1")
        return store.publish(name, Path(folder), Version(0, ENCODER, "minilm", "identity", {}, "", created, job), **how)


def always(_: Domain) -> bool:
    return True


def damage(store: DomainStore, name: str, content: bytes = b"{") -> None:
    store.blobs.write(store.records.key(name), content)


class Machine(RuleBasedStateMachine):
    """Two writers and crashes, beside the records that were acknowledged."""

    make: Open

    def __init__(self) -> None:
        super().__init__()
        self.crashing = Crashing(type(self).make())
        self.store = DomainStore(self.crashing)  # type: ignore[arg-type]
        self.other = DomainStore(self.crashing.blobs)
        self.watch = self.other.watch()
        self.killed = False  # since the last look: the change may not be in the log
        self.known: dict[str, Domain] = {}  # the domain at the last look
        self.uploads: dict[tuple[str, int], str] = {}  # of each number that was ever in a record
        self.entries: dict[str, dict[int, Entry]] = {}  # of each domain's history

    def now(self, name: str) -> Domain:
        return self.known.get(name, Domain())

    @rule(name=NAMES, promote=st.booleans(), job=st.sampled_from([None, "1", "2"]))
    def publishes(self, name: str, promote: bool, job: str | None) -> None:
        before = self.now(name)
        earlier = before.published_as("", job)
        version = publish(self.store, name, job, promote=lambda _: promote)
        if earlier is not None:
            assert version == earlier
        else:
            assert version.number == before.next
            assert (self.other.read(name).aliases.get(ENCODER, EncoderAliases()).champion == before.next) is promote

    @rule(name=NAMES, removing=st.booleans())
    def publishes_while_another_changes_the_domain(self, name: str, removing: bool) -> None:
        turns = iter([False, True])  # the first call is the check before the upload
        self.looks(name)

        def promote(_: Domain) -> bool:
            if next(turns, False):
                publish(self.other, name)
                if removing:
                    self.other.remove(name)
            return False

        before = self.now(name)
        if removing:
            with pytest.raises(Conflict, match="was deleted"):
                publish(self.store, name, promote=promote)
            assert self.other.read(name).versions == {}
        else:
            assert publish(self.store, name, promote=promote).number == before.next + 1

    @rule(name=NAMES, at=st.integers(0, 3))
    def promotes(self, name: str, at: int) -> None:
        before = self.now(name)
        if len(before.versions) <= at:
            with pytest.raises(NotFound):
                self.store.promote(name, ENCODER, before.next)
            return
        number = sorted(before.versions)[at]
        with pytest.raises(Conflict, match="another encoder"):
            self.store.promote(name, "f" * 64, number)
        after = self.store.promote(name, ENCODER, number, revision=before.revision)
        assert after.aliases[ENCODER].champion == number
        assert self.store.promote(name, ENCODER, number, revision=before.revision) == after  # repeated
        if after != before:
            with pytest.raises(Conflict, match="revision"):
                self.store.change(name, lambda domain: replace(domain, thresholds={"x": {}}), revision=before.revision)

    @rule(name=NAMES)
    def rolls_back(self, name: str) -> None:
        before = self.now(name)
        mine = before.aliases.get(ENCODER, EncoderAliases())
        if mine.previous is None:
            with pytest.raises(Conflict):
                self.store.rollback(name, ENCODER)
            return
        for _ in range(2):  # the second time as a client that has missed the answer
            after = self.store.rollback(name, ENCODER, revision=before.revision)
            assert after.aliases[ENCODER] == EncoderAliases(mine.previous, mine.champion, rolled_back=True)

    @rule(name=NAMES, keep=st.integers(1, 3))
    def prunes(self, name: str, keep: int) -> None:
        before = self.now(name)
        gone = self.store.prune(name, keep)
        assert set(self.store.read(name).versions) == set(before.versions) - set(gone)
        assert not {*gone} & {*before.named(), *sorted(before.versions)[-keep:]}

    @rule(name=NAMES)
    def removes(self, name: str) -> None:
        before = self.now(name)
        was_there = name in set(self.store.names())
        self.store.remove(name)
        after = self.store.read(name)
        assert (after.versions, after.aliases, after.next) == ({}, {}, before.next)
        if was_there:
            assert after.epoch > before.epoch
            with pytest.raises(Conflict, match="was deleted"):
                publish(self.store, name, epoch=before.epoch)

    @rule(
        name=NAMES,
        what=st.sampled_from(["publish", "remove", "prune", "promote"]),
        at=st.integers(1, 12),
        after=st.booleans(),
    )
    def is_killed(self, name: str, what: str, at: int, after: bool) -> None:
        self.crashing.left, self.crashing.after = at, after
        before = self.now(name)
        try:
            if what == "publish":
                publish(self.store, name, promote=always)
            elif what == "remove":
                self.store.remove(name)
            elif what == "prune":
                self.store.prune(name, 1)
            elif before.versions:
                self.store.promote(name, ENCODER, max(before.versions))
        except Killed:
            self.killed = True
        self.crashing.left = -1
        found = self.other.read(name)
        if found.revision == before.revision:
            assert found.versions == before.versions

    @rule(name=NAMES, whole=st.booleans())
    def is_damaged_and_repaired(self, name: str, whole: bool) -> None:
        before = self.now(name)
        if name not in set(self.other.names()):
            return
        content = self.other.blobs.read(self.other.records.key(name))[0]
        damage(self.other, name, b"\xff" if whole else content.replace(b'"thresholds": {}', b'"thresholds": 1'))
        with pytest.raises(CorruptArtifact):
            self.store.read(name)
        after = self.store.repair(name)
        assert after.history[-1].what == "repaired"
        if whole:
            self.entries.pop(name, None)  # those in the record are lost
        assert after.next >= before.next
        if not whole:
            assert (after.aliases, after.epoch) == (before.aliases, before.epoch)
            assert before.versions.items() <= after.versions.items()

    def looks(self, name: str) -> None:
        found = self.other.read(name)
        before = self.now(name)
        assert found.revision >= before.revision
        assert found.epoch >= before.epoch
        assert found.next >= before.next
        assert found.named() <= found.versions.keys()
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
        assert len(found.history) <= 2 * RECENT
        self.entries[name] = entries
        self.known[name] = found

    @invariant()
    def what_was_acknowledged_is_there(self) -> None:
        before = dict(self.known)
        changed = self.watch.changes(["a", "b-c"])
        for name in ("a", "b-c"):
            self.looks(name)
            if name in before and before[name] != self.known[name] and not self.killed:
                assert name in changed
        self.killed = False
        assert {name for name in self.known if self.known[name].versions} <= set(self.other.names())

    def teardown(self) -> None:
        self.crashing.blobs.delete([entry.key for entry in list(self.crashing.blobs.list(""))])


def test_a_domain_stays_whole_whoever_writes_and_dies(place: Open) -> None:
    run_on(place, Machine, examples=5 if "s3" in place().address else 60)


def test_a_repeated_job_finds_its_version(blobs: Blobs) -> None:
    store = DomainStore(blobs)
    first = publish(store, "a", "job", promote=always)
    once = Crashing(blobs)
    once.left = 2  # the record is read, and nothing is uploaded again
    assert publish(DomainStore(once), "a", "job") == first  # type: ignore[arg-type]
    assert list(store.read("a").versions) == [1]
    assert len(list(blobs.list("versions/"))) == 3


def test_two_attempts_of_a_job_publish_one_version(blobs: Blobs) -> None:
    store = DomainStore(blobs)
    first: list[Version] = []
    turns = iter([False, True])  # the first call is the check before the upload

    def promote(_: Domain) -> bool:
        if next(turns, False):
            first.append(publish(DomainStore(blobs), "a", "job"))
        return False

    assert [publish(store, "a", "job", promote=promote)] == first
    assert list(store.read("a").versions) == [1]
    assert len(list(blobs.list("versions/"))) == 3


def test_a_domain_created_again_continues_its_numbers(blobs: Blobs) -> None:
    store = DomainStore(blobs)
    publish(store, "a")
    store.remove("a")
    assert list(store.names()) == list(blobs.list("versions/")) == []
    with pytest.raises(UnknownDomain):
        store.read("a").version("a", 1)
    assert publish(store, "a").number == 2
    assert store.read("a").epoch == 1


def test_a_domain_that_is_only_read_or_pruned_is_not_created(blobs: Blobs) -> None:
    store = DomainStore(blobs)
    assert store.prune("a", 1) == []
    store.remove("a")
    assert store.repair("a") == Domain()
    assert list(blobs.list("")) == []


def test_a_damaged_record_stops_no_other_domain(blobs: Blobs) -> None:
    store = DomainStore(blobs)
    publish(store, "a")
    publish(store, "b-c", promote=always)
    damage(store, "a")
    with pytest.raises(CorruptArtifact, match=r"domains/a\.json"):
        store.read("a")
    assert list(store.names()) == ["a", "b-c"]
    assert store.read("b-c").aliases[ENCODER].champion == 1
    assert store.repair("a").versions[1].number == 1
    damage(store, "a")
    store.remove("a")
    assert list(store.names()) == ["b-c"]


def test_a_repair_uses_no_number_again(blobs: Blobs) -> None:
    """A deletion is killed before the tombstone, another version is published, and then the record is damaged: its
    versions are not restored, and their numbers are not used again, also after their files are gone."""
    crashing = Crashing(blobs)
    killed = DomainStore(crashing)  # type: ignore[arg-type]

    store = DomainStore(blobs)
    publish(store, "a", promote=always)
    before_tombstone = 3  # after: record and deleted/a.json are read, deleted/a.json is written
    crashing.left, crashing.after = before_tombstone, True
    with pytest.raises(Killed):
        killed.remove("a")
    assert store.deletions.read("a").epoch == 1
    publish(store, "a")
    damage(store, "a")
    repaired = store.repair("a")
    assert (repaired.versions, repaired.next) == ({}, 3)
    for one in store.garbage(-60):
        one.remove()
    damage(store, "a")
    assert store.repair("a").next >= 3
    assert publish(store, "a").number >= 3


def test_a_version_without_a_number_in_its_manifest_gets_a_new_one(blobs: Blobs) -> None:
    store = DomainStore(blobs)
    crashing = Crashing(blobs)
    publish(store, "a")
    for left in (4, 6):  # before the record is written, and before the number is in the manifest
        crashing.left, crashing.after = left, True
        with pytest.raises(Killed):
            publish(DomainStore(crashing), "a", created=f"2026-01-0{left}T00:00:00+00:00")  # type: ignore[arg-type]
    before = store.read("a")
    assert list(before.versions) == [1, 2]
    damage(store, "a")
    after = store.repair("a")
    assert len(after.versions) == 3
    for number, version in after.versions.items():
        assert before.versions.get(number, version).upload == version.upload
    assert {one.upload for one in before.versions.values()} <= {one.upload for one in after.versions.values()}


def test_a_changed_file_is_named(blobs: Blobs) -> None:
    store = DomainStore(blobs)
    version = publish(store, "a")
    key = f"versions/a/{version.upload}/weights"
    blobs.write(key, b"2")
    with pytest.raises(CorruptArtifact, match="version 1 of 'a': weights"), store.files("a", 1):
        pass
    blobs.delete([key])
    with pytest.raises(CorruptArtifact, match="missing"), store.files("a", 1):
        pass


def test_uploads_without_a_record_are_garbage(blobs: Blobs) -> None:
    store = DomainStore(blobs)
    publish(store, "a")
    blobs.write("versions/a/unfinished/weights", b"1")
    assert list(store.garbage(60)) == []
    (found,) = store.garbage(-60)
    assert (found.name.endswith("versions/a/unfinished/"), found.size) == (True, 1)
    found.remove()
    assert list(store.garbage(-60)) == []


def test_a_reader_that_missed_changes_compares_all_domains(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes_module, "KEPT", 2)
    store = DomainStore(blobs)
    watch = store.watch()
    publish(store, "a")
    assert watch.changes(["a", "b-c"]) == {"a", "b-c"}
    assert watch.changes(["a", "b-c"]) == set()
    for _ in range(3):
        publish(store, "b-c")
    store.promote("a", ENCODER, 1)
    for _ in range(3):
        publish(store, "d")
    assert watch.changes(["a", "b-c"]) >= {"a", "b-c"}


def test_a_change_that_is_not_in_the_log_is_found_within_a_minute(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DomainStore(blobs)
    watch = store.watch()
    publish(store, "a")
    assert watch.changes(["a"]) == {"a"}
    monkeypatch.setattr(store.log, "append", lambda name, revision: None)  # it failed, or the process was killed
    store.promote("a", ENCODER, 1)
    assert watch.changes(["a"]) == set()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + changes_module.FULL_LOOK)
    assert watch.changes(["a"]) == {"a"}
    assert watch.changes(["a"]) == set()


def test_a_damaged_log_of_changes_begins_anew(blobs: Blobs, caplog: pytest.LogCaptureFixture) -> None:
    store = DomainStore(blobs)
    watch = store.watch()
    publish(store, "a")
    watch.changes(["a"])
    blobs.write(store.log.key, b"{")
    with caplog.at_level(logging.WARNING):
        publish(store, "a")
        assert watch.changes(["a"]) == {"a"}
    assert "the log of changes begins anew" in caplog.text


@pytest.mark.parametrize("name", ["", "A", "../a", ".a", "a" * 65])
def test_a_name_that_breaks_the_rule_is_refused(blobs: Blobs, name: str) -> None:
    store = DomainStore(blobs)
    calls: list[Any] = [lambda: store.read(name), lambda: store.remove(name), lambda: publish(store, name)]
    for call in calls:
        with pytest.raises(InvalidInput):
            call()


def test_a_history_names_each_change_and_outlives_the_record(blobs: Blobs) -> None:
    store = DomainStore(blobs)
    token = author.set(Author("key", request="r1"))
    try:
        publish(store, "a", promote=always)
        store.set_target("a", "x", Target(0.01))
        for _ in range(130):
            store.set_target("a", "y", Target(0.1))
            store.set_target("a", "y", None)
        store.remove("a")
        publish(store, "a")
    finally:
        author.reset(token)
    entries = list(store.history("a"))[::-1]
    assert [entry.number for entry in entries] == [*range(1, 266)]
    assert [(one.what, one.subject, one.before, one.after) for one in (*entries[:4], *entries[-2:])] == [
        ("version_published", "minilm", None, 1),
        ("promoted", "minilm", None, 1),
        ("threshold_saved", "x", None, {"fmr": 0.01}),
        ("threshold_saved", "y", None, {"fmr": 0.1}),
        ("domain_deleted", None, 1, None),
        ("version_published", "minilm", None, 2),
    ]
    assert {(one.by, one.request, one.job) for one in entries} == {("key", "r1", None)}
    assert [entry.number for entry in store.history("a", before=3)] == [2, 1]
    assert len(store.read("a").history) <= 2 * RECENT


def test_a_history_is_whole_where_a_process_is_killed_between_block_and_record(blobs: Blobs) -> None:
    crashing = Crashing(blobs)
    store, killed = DomainStore(blobs), DomainStore(crashing)  # type: ignore[arg-type]
    publish(store, "a")
    for number in range(2 * RECENT + 5):
        crashing.left, crashing.after = 1 + number % 6, bool(number % 2)
        with contextlib.suppress(Killed):
            killed.set_target("a", "x", Target((1 + number) / 100))
    crashing.left = -1
    numbers = [entry.number for entry in store.history("a")]
    assert numbers == [*range(store.read("a").changes, 0, -1)]


@pytest.mark.parametrize("content", [b"{", b"{}", b'{"next": 2, "epoch": "?", "change": ""}'], ids=str)
def test_a_damaged_record_of_deletions_is_rebuilt_and_no_number_is_used_again(blobs: Blobs, content: bytes) -> None:
    store = DomainStore(blobs)
    for _ in range(3):
        publish(store, "a", promote=always)
    epoch = store.read("a").epoch
    store.remove("a")
    blobs.write("deleted/a.json", content)
    with pytest.raises(CorruptArtifact, match="isosim store repair a"):
        store.read("a")
    publish(store, "b")
    after = store.repair("a")
    assert after.epoch > epoch
    assert after.next > 3 or b'"next": 2' in content  # what can be read is believed
    with pytest.raises(Conflict, match="was deleted"):
        publish(store, "a", epoch=epoch)
    assert publish(store, "a").number == after.next
    assert store.repair("a") == store.read("a")


def test_an_empty_object_is_no_record(blobs: Blobs) -> None:
    store = DomainStore(blobs)
    publish(store, "a", promote=always)
    damage(store, "a", b"{}")
    with pytest.raises(CorruptArtifact, match="not written as a record"):
        store.read("a")
    assert sorted(store.repair("a").versions) == [1]


def test_damaged_side_records_stop_no_change(blobs: Blobs) -> None:
    """Blocks of the history, the record of deletions, and the log of changes."""
    store = DomainStore(blobs)
    for _ in range(3):
        publish(store, "a", promote=always)
    for key in ("history/a/00000.json", "deleted/a.json", "changes.json"):
        blobs.write(key, b"{")
    for number in range(1, 3 * RECENT):
        store.set_target("a", "x", Target(number / 100))
    store.delete("a", 1)
    blobs.write("deleted/a.json", b"{")
    assert [entry.number for entry in store.history("a")][-1] == 1  # the block was written anew
    assert store.log.read()
    store.remove("a")
    assert publish(store, "a").number > 3


def test_a_file_elsewhere_is_no_file_of_a_version(blobs: Blobs, tmp_path: Path) -> None:
    """Who may write the bucket must not write files of the servers."""
    store, victim = DomainStore(blobs), tmp_path / "victim"
    victim.write_bytes(b"whole")
    publish(store, "a", promote=always)
    for name in (str(victim), "../victim", ""):
        store.change("a", lambda domain: replace(domain, versions={1: replace(domain.versions[1], files={name: ""})}))  # noqa: B023
        with pytest.raises(CorruptArtifact, match="not the name of a file"), store.files("a", 1):
            pass
    assert victim.read_bytes() == b"whole"


def test_a_lost_answer_to_the_last_write_is_found(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience is over when the refusal comes; the version is published, and keeps its files."""
    store, other = DomainStore(blobs), DomainStore(blobs)
    publish(store, "a", promote=always)
    write = blobs.write
    lost = iter([True])

    def losing(key: str, content: bytes, **condition: Any) -> str:
        tag = write(key, content, **condition)
        if key == "domains/a.json" and next(lost, False):
            other.set_target("a", "x", Target(0.01))
            monkeypatch.setattr("isosim.store.records.PATIENCE", -1.0)
            raise Changed(key)
        return tag

    monkeypatch.setattr(blobs, "write", losing)
    monkeypatch.setattr("isosim.store.records.PATIENCE", 0.0)
    assert publish(store, "a", promote=always).number == 2
    with store.files("a", 2):
        pass
