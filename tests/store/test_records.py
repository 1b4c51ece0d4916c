"""Records: changed as a whole, by one writer at a time, and never lost; in a folder and in buckets."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from isosim.errors import Conflict, CorruptArtifact
from isosim.store import records as module
from isosim.store.blobs import Blobs, Changed, Folder
from isosim.store.records import Records
from tests.store.conftest import Open
from tests.store.machines import killed_at, run_on


@dataclass(frozen=True)
class Count:
    number: int = 0
    names: dict[str, int] = field(default_factory=dict)


def counts(blobs: Blobs) -> Records[Count]:
    return Records(blobs, Count, "counts/")


def one_more(there: Count | None) -> Count:
    there = there or Count()
    return replace(there, number=there.number + 1)


NAMES = st.sampled_from(["a", "a-b", "b"])


class Machine(RuleBasedStateMachine):
    """Two writers, beside a dictionary of what was acknowledged."""

    make: Open

    def __init__(self) -> None:
        super().__init__()
        self.blobs = type(self).make()
        self.records, self.other = counts(self.blobs), counts(self.blobs)
        self.model: dict[str, int] = {}

    @rule(name=NAMES, meanwhile=st.sampled_from(["", "another changes it", "another recreates it"]))
    def changes(self, name: str, meanwhile: str) -> None:
        turns = iter([meanwhile])

        def step(there: Count | None) -> Count:
            turn = next(turns, "")
            if "changes" in turn:
                self.other.change(name, one_more)
            for number in (50, 100) if "recreates" in turn else ():  # a tombstone is no state that it had before
                self.other.remove(name, bool)
                assert self.other.create(name, Count(number)) == Count(number)
            return one_more(there)

        number = 101 if "recreates" in meanwhile else self.model.get(name, 0) + 1 + bool(meanwhile)
        assert self.records.change(name, step).number == number
        self.model[name] = number

    @rule(name=NAMES)
    def changes_nothing(self, name: str) -> None:
        if name in self.model:
            before = self.blobs.read(self.records.key(name))
            with pytest.raises(ZeroDivisionError):
                self.records.change(name, lambda there: Count(1 // 0))
            found = self.records.change(name, lambda there: there or Count()), self.records.create(name, Count(7))
            assert [one.number for one in found] == [self.model[name]] * 2
            assert self.blobs.read(self.records.key(name)) == before

    @rule(name=NAMES)
    def removes(self, name: str) -> None:
        seen: list[int] = []
        self.records.remove(name, lambda there: seen.append(there.number))
        assert seen == ([self.model.pop(name)] if name in self.model else [])

    @rule(name=NAMES, content=st.sampled_from([b"", b"[]", b"{}", b"{", b'{"number": "x"}', b"\xff" * 40]))
    def is_damaged_and_rebuilt(self, name: str, content: bytes) -> None:
        if name not in self.model:
            return
        self.blobs.write(self.records.key(name), content)
        for call in (self.records.read, lambda name: self.records.change(name, one_more), self.removes):
            with pytest.raises(CorruptArtifact, match=rf"counts/{name}\.json"):
                call(name)
        assert name in self.other.names()
        for number in (self.model[name], -1):  # it is sound the second time
            assert self.records.rebuild(name, lambda _: Count(number)).number == self.model[name]  # noqa: B023

    @invariant()
    def what_was_acknowledged_is_there(self) -> None:
        assert {name: self.other.read(name).number for name in self.other.names()} == self.model
        assert [*self.other.names("a")] == [name for name in self.other.names() if name not in ("a", "a-b")]

    def teardown(self) -> None:
        self.blobs.delete([entry.key for entry in list(self.blobs.list(""))])


def test_what_is_acknowledged_stays_whoever_writes_and_dies(place: Open) -> None:
    run_on(place, Machine, examples=8 if "s3" in place().address else 50)


def test_no_change_of_many_writers_is_lost_and_the_first_to_create_a_record_wins(
    place: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 60.0)  # the machine may be busy
    with ThreadPoolExecutor(8) as pool:
        created = set(pool.map(lambda number: counts(place()).create("a", Count(number)).number, range(8)))
        list(pool.map(lambda _: counts(place()).change("a", one_more), range(40)))
    assert counts(place()).read("a").number == created.pop() + 40
    assert not created


def test_a_record_that_others_keep_changing_is_given_up(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.2)

    def step(there: Count | None) -> Count:
        counts(blobs).change("a", one_more)
        return one_more(there)

    with pytest.raises(Conflict, match=r"counts/a\.json"):
        counts(blobs).change("a", step)


def test_equal_records_of_two_writers_have_different_contents(blobs: Blobs) -> None:
    """Otherwise a writer could take the other's write for its own: tags of S3 are hashes of the content."""
    for name in ("a", "b"):
        counts(blobs).create(name, Count(1))
    assert blobs.read("counts/a.json")[0] != blobs.read("counts/b.json")[0]


def test_a_process_killed_at_any_step_leaves_one_state_or_the_next_and_litter_that_can_be_removed(
    tmp_path: Path,
) -> None:
    def changes(blobs: Blobs) -> None:
        counts(blobs).change("a", one_more)
        counts(blobs).remove("a", bool)
        counts(blobs).create("b", Count(1))
        blobs.delete(["counts/b.json"])

    for step in count(1):
        blobs = Folder(tmp_path / str(step))
        counts(blobs).create("a", Count(1))
        killed = killed_at(step, blobs.root, changes)
        found = {name: counts(blobs).read(name).number for name in counts(blobs).names()}
        assert found in ({"a": 1}, {"a": 2}, {}, {"b": 1})
        for name in ("a", "b"):  # a lock that was left stops no writer
            counts(blobs).change(name, one_more)
        for item in blobs.unfinished(-1):
            item.remove()
        assert list(blobs.root.rglob(".*")) == []
        if not killed:
            assert step > 6
            return


def test_a_lost_answer_to_the_last_write_is_found(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience is over when the refusal comes, and another has written since."""
    counts(blobs).create("a", Count())
    write, lost = blobs.write, iter([True])

    def losing(key: str, content: bytes, **condition: Any) -> str:
        tag = write(key, content, **condition)
        if next(lost, False):
            counts(blobs).change("a", one_more)
            monkeypatch.setattr(module, "PATIENCE", -1.0)
            raise Changed(key)
        return tag

    monkeypatch.setattr(blobs, "write", losing)
    after = counts(blobs).change("a", lambda there: there if there and there.names else Count(names={"mine": 1}))
    assert after == Count(1, {"mine": 1})
