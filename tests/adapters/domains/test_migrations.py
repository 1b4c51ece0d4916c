"""Migrations on disk: whole, one change at a time."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from isosim.domains.migrations import MigrationStore
from isosim.domains.store import DomainStore
from isosim.errors import Conflict, CorruptArtifact, Unavailable
from isosim.scoring.moves import Migration
from tests.objects import Objects, objects  # noqa: F401 - a fixture


@pytest.fixture(params=["folder", "bucket"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Of a store: a folder, or a bucket."""
    if request.param == "folder":
        return tmp_path
    storage: Objects = request.getfixturevalue("objects")
    return storage.bucket()


MIGRATION = Migration("a" * 64, "old", "b" * 64, "new", "2026-11-21T12:00:00+00:00")


def test_what_is_written_is_read_and_a_removed_one_is_gone(root: Path) -> None:
    store = MigrationStore(root)
    assert store.all() == {}
    store.set("news", MIGRATION, expected=None)
    store.set("tickets", replace(MIGRATION, new="c" * 64), expected=None)
    assert store.all() == {"news": MIGRATION, "tickets": replace(MIGRATION, new="c" * 64)}
    store.set("news", None, expected=MIGRATION)
    assert list(store.all()) == ["tickets"]


def test_a_change_of_what_is_no_longer_there_is_refused_and_changes_nothing(root: Path) -> None:
    store = MigrationStore(root)
    store.set("news", MIGRATION, expected=None)
    store.set("news", replace(MIGRATION, new_id="newer"), expected=MIGRATION)
    for wanted in (replace(MIGRATION, new_id="newest"), None):
        with pytest.raises(Conflict, match="changed meanwhile"):
            store.set("news", wanted, expected=MIGRATION)
    with pytest.raises(Conflict, match="changed meanwhile"):
        store.set("news", MIGRATION, expected=None)
    assert store.all()["news"].new_id == "newer"


def test_of_many_who_begin_at_once_one_succeeds(root: Path) -> None:
    begun: list[int] = []
    gate = threading.Barrier(8)

    def begin(number: int) -> None:
        gate.wait()
        try:
            MigrationStore(root).set("news", replace(MIGRATION, new_id=str(number)), expected=None)
        except Conflict:
            return
        begun.append(number)

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(begun) == 1
    assert MigrationStore(root).all()["news"].new_id == str(begun[0])


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"domains": 3}', '{"domains": {"news": {}}}', '{"domains": {"news": {"old": "a"}}}',
     '{"domains": {"news": {"old": "a", "old_id": "a", "new": "b", "new_id": "b", "since": 1}}}',
     '{"domains": {"news": {"old": 1, "old_id": "a", "new": "b", "new_id": "b"}}}'],
)  # fmt: skip
def test_garbage_is_named_and_never_read_as_no_migration(tmp_path: Path, content: str) -> None:
    store = MigrationStore(tmp_path)
    store.path.parent.mkdir()
    store.path.write_text(content)
    with pytest.raises(CorruptArtifact, match=r"\.migrations\.json"):
        store.all()


def test_what_a_newer_release_wrote_is_not_guessed_at(tmp_path: Path) -> None:
    store = MigrationStore(tmp_path)
    store.path.parent.mkdir()
    store.path.write_text('{"format": 2, "moves": []}')
    with pytest.raises(Unavailable, match="newer release"):
        store.all()


def test_a_volume_that_is_away_is_no_store_in_which_nothing_moved(tmp_path: Path) -> None:
    store = MigrationStore(tmp_path)
    assert store.all() == {}  # nothing is there yet
    store.set("news", MIGRATION, expected=None)
    assert store.all() == {"news": MIGRATION}
    store.path.parent.rename(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="domains"):
        store.all()


def test_changes_of_different_domains_at_once_are_all_kept(root: Path) -> None:
    names = [f"d{number}" for number in range(4)]
    threads = [
        threading.Thread(target=lambda name=name: MigrationStore(root).set(name, MIGRATION, expected=None))
        for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(MigrationStore(root).all()) == names


def test_it_is_no_domain(tmp_path: Path) -> None:
    MigrationStore(tmp_path).set("news", MIGRATION, expected=None)
    assert DomainStore(tmp_path).domains() == []
