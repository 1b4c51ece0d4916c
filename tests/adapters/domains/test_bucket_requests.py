"""What API processes ask of a bucket while nothing changes and when something does: requests are money there."""

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

from isosim.domains import migrations
from isosim.domains.migrations import MigrationStore
from isosim.domains.store import DomainStore
from isosim.scoring.calibration import DomainModel
from isosim.scoring.moves import Migration
from loadtest.bucket import COUNTING, ENCODER, Bucket, Watcher, bucket, filled, of_jobs, running_jobs, watched

DOMAINS, WATCHERS, RESIDENT = 200, 5, 3
MIGRATION = Migration(ENCODER, "tiny", "b" * 64, "new", "2026-11-21T12:00:00+00:00")
FACTS = {"method": "identity", "encoder": {"id": "tiny", "digest": ENCODER}}


@pytest.fixture(scope="module")
def place() -> Iterator[Bucket]:
    with bucket() as place:
        yield place


@pytest.fixture(scope="module")
def store(place: Bucket) -> DomainStore:
    return filled(place, DOMAINS)


async def watchers_of(place: Bucket) -> list[Watcher]:
    watchers = [Watcher(place.root) for _ in range(WATCHERS)]
    for watcher in watchers:
        await watcher.look()
        await watcher.load(RESIDENT)
    await watched(place, watchers, 2)
    return watchers


def test_a_look_at_which_nothing_changed_asks_for_one_tag(place: Bucket, store: DomainStore) -> None:
    async def looks() -> Counter[str]:
        return await watched(place, await watchers_of(place), 4)

    assert asyncio.run(looks()) == {"HEAD": 4 * WATCHERS}


def test_a_migration_is_seen_at_the_next_look_and_read_once_by_each_process(place: Bucket, store: DomainStore) -> None:
    async def looks() -> tuple[list[float], Counter[str]]:
        watchers = await watchers_of(place)
        now = MigrationStore(place.root).all().get("d2")
        MigrationStore(place.root).set("d2", MIGRATION, expected=now)
        before = place.counts()
        seen = []
        for watcher in watchers:
            await watcher.look()
            seen.append(watcher.migrations.look(watcher.store.heard)["d2"])
        return seen, place.counts() - before

    seen, asked = asyncio.run(looks())
    assert seen == [MIGRATION] * WATCHERS
    assert asked == {"HEAD": WATCHERS, "LIST": WATCHERS, "GET": WATCHERS}


def test_a_migration_whose_bell_was_lost_is_seen_by_a_full_look(
    place: Bucket, store: DomainStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an earlier release, or a process that died before the bell, leaves it."""
    watcher, unheard = Watcher(place.root), MigrationStore(place.root)
    asyncio.run(watcher.look())
    monkeypatch.setattr(migrations, "BELL", "domains/unheard")
    unheard.set("d3", MIGRATION, expected=None)
    asyncio.run(watcher.look())
    assert "d3" not in watcher.migrations.look(watcher.store.heard)
    monkeypatch.setattr(migrations, "FULL_LOOK", 0.0)
    assert watcher.migrations.look(watcher.store.heard)["d3"] == MIGRATION


def test_jobs_cost_what_the_how_to_says(place: Bucket, store: DomainStore) -> None:
    """The table of docs/how-to/object-storage.md counts these for 100 jobs."""
    asked = of_jobs(place, running_jobs(place.root, 4))
    assert asked["heartbeats"] == {"GET": 4, "PUT": 4}
    assert asked["counts of jobs"] == {"LIST": COUNTING, "GET": 4 * COUNTING}


def test_a_promotion_costs_each_process_one_listing_and_what_it_loads(place: Bucket, store: DomainStore) -> None:
    async def looks() -> tuple[Counter[str], Counter[str], list[bool]]:
        watchers = await watchers_of(place)
        version = store.publish("d1", FACTS, {}, None, DomainModel())
        before = place.counts()
        store.promote("d1", ENCODER, version, expected=store.aliases("d1", ENCODER))
        promotion = place.counts() - before
        looked = await watched(place, watchers, 1)
        return promotion, looked, [("d1", version) in watcher.seen for watcher in watchers]

    promotion, looked, seen = asyncio.run(looks())
    assert all(seen)
    assert promotion["PUT"] == 3  # aliases, announcement, bell
    assert looked["LIST"] == WATCHERS
    assert looked["PUT"] == 0


def test_few_resident_domains_are_compared_one_by_one_and_many_by_a_listing(place: Bucket, store: DomainStore) -> None:
    def asked(count: int) -> Counter[str]:
        before = place.counts()
        stamps = own.stamps({f"d{number}": frozenset({1}) for number in range(count)})
        assert None not in stamps.values()
        return place.counts() - before

    own = DomainStore(place.root)
    assert asked(5) == {"HEAD": 5}
    assert asked(50) == {"LIST": 1}
    assert own.stamps({"nowhere": frozenset()}) == {"nowhere": None}


def test_a_store_without_a_bell_is_listed_at_every_look(place: Bucket) -> None:
    """As an earlier release left it."""
    empty = Bucket(place.url, place.pid)
    empty.root = place.root.parent / "another"

    async def looks() -> Counter[str]:
        return await watched(empty, [Watcher(empty.root)], 3)

    found = asyncio.run(looks())
    assert found["LIST"] == 3
