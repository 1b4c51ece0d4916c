"""Records: changed as a whole, by one writer at a time, and never lost; in a folder and in buckets."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from isosim.errors import Conflict, CorruptArtifact
from isosim.store import records as module
from isosim.store.blobs import Blobs, Folder
from isosim.store.records import Records
from tests.store.conftest import Open
from tests.store.machines import Crashing, Killed, run_on


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
    """Several writers and crashes, beside a dictionary of what was acknowledged."""

    make: Open

    def __init__(self) -> None:
        super().__init__()
        self.crashing = Crashing(type(self).make())
        self.records: Records[Count] = counts(self.crashing)  # type: ignore[arg-type]
        self.model: dict[str, int] = {}

    @rule(name=NAMES)
    def changes(self, name: str) -> None:
        assert self.records.change(name, one_more).number == self.model.get(name, 0) + 1
        self.model[name] = self.model.get(name, 0) + 1

    @rule(name=NAMES)
    def changes_nothing(self, name: str) -> None:
        if name in self.model:
            assert self.records.change(name, lambda there: there or Count()).number == self.model[name]

    @rule(name=NAMES)
    def another_writes_in_between(self, name: str) -> None:
        turns: Iterator[int] = iter(range(2))

        def step(there: Count | None) -> Count:
            if next(turns, None) == 0:
                counts(self.crashing.blobs).change(name, one_more)
            return one_more(there)

        self.records.change(name, step)
        self.model[name] = self.model.get(name, 0) + 2

    @rule(name=NAMES)
    def removes(self, name: str) -> None:
        seen: list[int] = []
        self.records.remove(name, lambda there: seen.append(there.number))
        assert seen == ([self.model.pop(name)] if name in self.model else [])

    @rule(name=NAMES)
    def creates_again_what_another_removed_and_created_in_between(self, name: str) -> None:
        """A tombstone is no state that a writer can take for an older one."""
        self.records.remove(name, lambda _: None)
        self.model.pop(name, None)
        turns: Iterator[int] = iter(range(2))

        def step(there: Count | None) -> Count:
            if next(turns, None) == 0:
                other = counts(self.crashing.blobs)
                other.change(name, lambda _: Count(100))
                other.remove(name, lambda _: None)
                other.change(name, lambda _: Count(200))
            return one_more(there)

        assert self.records.change(name, step).number == 201
        self.model[name] = 201

    @rule(name=NAMES, at=st.integers(1, 3), after=st.booleans(), removing=st.booleans())
    def is_killed(self, name: str, at: int, after: bool, removing: bool) -> None:
        self.crashing.left, self.crashing.after = at, after
        before = self.model.get(name)
        try:
            if removing:
                self.records.remove(name, lambda _: None)
            else:
                self.records.change(name, one_more)
        except Killed:
            pass
        self.crashing.left = -1
        try:
            found: int | None = self.records.read(name).number
        except FileNotFoundError:
            found = None
        assert found in (before, None if removing else (before or 0) + 1)
        self.model.pop(name, None)
        if found is not None:
            self.model[name] = found

    @invariant()
    def what_was_acknowledged_is_there(self) -> None:
        other = counts(self.crashing.blobs)
        assert {name: other.read(name).number for name in other.names()} == self.model
        assert [*other.names("a")] == [name for name in other.names() if other.key(name) > other.key("a")]

    def teardown(self) -> None:
        self.crashing.blobs.delete([entry.key for entry in list(self.crashing.blobs.list(""))])


def test_what_is_acknowledged_stays_whoever_writes_and_dies(place: Open) -> None:
    run_on(place, Machine, examples=10 if "s3" in place().address else 60)


def test_no_change_of_many_writers_is_lost(place: Open) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: counts(place()).change("a", one_more), range(40)))
    assert counts(place()).read("a").number == 40


COUNTING = """
import sys
from pathlib import Path
from isosim.store.blobs import Folder
from tests.store.test_records import counts, one_more
for _ in range(50):
    counts(Folder(Path(sys.argv[1]))).change("a", one_more)
"""


def test_no_change_of_many_processes_is_lost(tmp_path: Path) -> None:
    children = [subprocess.Popen([sys.executable, "-c", COUNTING, str(tmp_path)]) for _ in range(4)]
    assert [child.wait(60) for child in children] == [0] * 4
    assert counts(Folder(tmp_path)).read("a").number == 200
    assert [path.name for path in (tmp_path / "counts").iterdir()] == ["a.json"]


def test_a_record_that_others_keep_changing_is_given_up(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.2)

    def step(there: Count | None) -> Count:
        counts(blobs).change("a", one_more)
        return one_more(there)

    with pytest.raises(Conflict, match=r"counts/a\.json"):
        counts(blobs).change("a", step)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"number": "many"}', b"\xff" * 40, b'{"names": {"a": null}}'])
def test_a_damaged_record_is_named_and_written_over_by_nobody(blobs: Blobs, content: bytes) -> None:
    blobs.write("counts/a.json", content)
    counts(blobs).create("b", Count(1))
    for call in (
        lambda: counts(blobs).read("a"),
        lambda: counts(blobs).change("a", one_more),
        lambda: counts(blobs).remove("a", lambda _: None),
    ):
        with pytest.raises(CorruptArtifact, match=r"counts/a\.json"):
            call()
    assert blobs.read("counts/a.json")[0] == content
    assert list(counts(blobs).names()) == ["a", "b"]
    assert counts(blobs).read("b") == Count(1)


def test_an_error_of_a_step_changes_nothing(blobs: Blobs) -> None:
    counts(blobs).create("a", Count(1))
    stamp = blobs.stamp("counts/a.json")
    with pytest.raises(ZeroDivisionError):
        counts(blobs).change("a", lambda there: Count(1 // 0))
    assert counts(blobs).change("a", lambda there: there or Count()) == Count(1)
    assert blobs.stamp("counts/a.json") == stamp


def test_the_first_to_create_a_record_wins(place: Open) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: counts(place()).create("a", Count(number)), range(8)))
    assert len({one.number for one in found}) == 1
    assert counts(place()).read("a") == found[0]


def test_equal_records_of_two_writers_have_different_contents(blobs: Blobs) -> None:
    """Otherwise a writer could take the other's write for its own: tags of S3 are hashes of the content."""
    for name in ("a", "b"):
        counts(blobs).create(name, Count(1))
    assert blobs.read("counts/a.json")[0] != blobs.read("counts/b.json")[0]
