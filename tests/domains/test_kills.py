"""Processes killed (SIGKILL) at each step of a change of a domain: nothing half is ever visible."""

from collections.abc import Callable
from pathlib import Path

import pytest

from isosim.domains.store import DomainStore
from isosim.store.blobs import Folder
from tests.domains.test_domains import ENCODER, always, publish
from tests.store.machines import killed_at

STEPS = 60  # more than any of the changes takes


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("publish", lambda store: publish(store, "a", "job", promote=always)),
        ("promote", lambda store: store.promote("a", ENCODER, 2)),
        ("prune", lambda store: store.prune("a", 1)),
        ("remove", lambda store: store.remove("a")),
    ],
)
def test_a_killed_process_leaves_the_state_before_or_after(
    what: str, change: Callable[[DomainStore], object], tmp_path: Path
) -> None:
    for step in range(1, STEPS):
        root = tmp_path / str(step)
        store = DomainStore(Folder(root))
        publish(store, "a", promote=always)
        for _ in range(2):
            publish(store, "a")
        before = store.read("a")
        killed = killed_at(step, root, lambda blobs: change(DomainStore(blobs)))
        found = store.read("a")
        changed = found.revision != before.revision
        if not changed:
            assert (found.versions, found.aliases) == (before.versions, before.aliases)
        elif what == "publish":
            assert (sorted(found.versions), found.served(ENCODER).champion) == ([1, 2, 3, 4], 4)
        elif what == "promote":
            assert found.served(ENCODER).champion == 2
        elif what == "prune":
            assert sorted(found.versions) == [1, 3]  # the champion and the newest stay
        else:
            assert found.versions == {}
        for number in found.versions:
            with store.files("a", number):
                pass
        # The next process does the change, and what was left can be removed.
        change(store)
        after = store.read("a")
        assert after.history == DomainStore(Folder(root)).read("a").history
        entries = [entry.number for entry in store.history("a")]
        assert entries == [*range(after.changes, 0, -1)]
        for item in [*store.blobs.unfinished(0), *store.garbage(0)]:
            item.remove()
        kept = {f"versions/a/{version.upload}" for version in after.versions.values()}
        assert {str(path.parent.relative_to(root)) for path in root.glob("versions/a/*/*")} == kept
        assert list(root.rglob(".*")) == []
        if not killed:
            return
    raise AssertionError("the change has more steps")
