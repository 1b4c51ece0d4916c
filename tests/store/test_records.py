"""Records: changed as a whole, by one writer at a time, and never lost; in a folder and in buckets."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from isosim.errors import Conflict, CorruptArtifact
from isosim.store import records as module
from isosim.store.blobs import Blobs, Changed
from isosim.store.records import Records
from tests.store.conftest import EVERY_PLACE, Open
from tests.store.machines import Watched, run_on


@dataclass(frozen=True)
class Count:
    number: int = 0
    names: dict[str, int] = field(default_factory=dict)


DELETED = Count(-1)


def counts(blobs: Blobs) -> Records[Count]:
    return Records(blobs, Count, "counts/", deleted=DELETED.__eq__)


def one_more(there: Count | None) -> Count:
    there = Count() if there is None or there == DELETED else there
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
                self.other.change(name, lambda _: DELETED)
                self.other.change(name, lambda _: Count(number))  # noqa: B023
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
        if name in self.model:
            self.records.change(name, lambda _: DELETED)
            assert self.records.read(name) == DELETED
            del self.model[name]

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


def test_what_is_acknowledged_stays_whoever_writes_and_dies(place: Open) -> None:
    run_on(place, Machine, examples=60)


@EVERY_PLACE
def test_no_change_of_many_writers_is_lost_and_the_first_to_create_a_record_wins(
    place: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 60.0)  # the machine may be busy
    with ThreadPoolExecutor(8) as pool:
        created = set(pool.map(lambda number: counts(place()).create("a", Count(number)).number, range(8)))
        list(pool.map(lambda _: counts(place()).change("a", one_more), range(40)))
    assert counts(place()).read("a").number == created.pop() + 40
    assert not created
    counts(place()).create("b", Count(counts(place()).read("a").number))
    contents = {place().read(f"counts/{name}.json")[0] for name in "ab"}
    assert len(contents) == 2  # a writer that has written the same must not take another's write for its own


def test_a_record_that_is_just_as_long_as_a_deleted_one_is_listed(blobs: Blobs) -> None:
    records, long = counts(blobs), 1
    for _ in range(2):
        records.change("a", lambda _: Count(names={"x" * long: 1}))  # noqa: B023
        long += module.TOMBSTONE - len(blobs.read("counts/a.json")[0])
    assert list(records.names()) == ["a"]


@pytest.mark.parametrize("written", [False, True])
def test_a_change_that_others_keep_refusing_is_given_up_unless_only_its_answer_was_lost(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    """Another writes meanwhile, and patience is over when the refusal comes."""
    monkeypatch.setattr(module, "PATIENCE", -1.0)
    counts(blobs).create("a", Count())

    def refusing(key: str, content: bytes, **condition: Any) -> str:
        if written:
            blobs.write(key, content, **condition)
        counts(blobs).change("a", one_more)
        raise Changed(key)

    store: Any = Watched(blobs, lambda *_: None)
    store.write = refusing
    with nullcontext() if written else pytest.raises(Conflict, match=r"counts/a\.json"):
        after = counts(store).change("a", lambda there: there if there and there.names else Count(names={"mine": 1}))
        assert after == Count(1, {"mine": 1})
