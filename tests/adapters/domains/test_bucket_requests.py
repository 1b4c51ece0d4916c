"""What API processes ask of a bucket while nothing changes and when something does: requests are money there."""

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

from loadtest.bucket import ENCODER, Bucket, Watcher, bucket, filled, watched
from service.adapters.domains.store import DomainStore
from service.core.scoring.calibration import DomainModel

DOMAINS, WATCHERS, RESIDENT = 200, 5, 3
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


def test_a_look_at_which_nothing_changed_asks_for_one_tag_and_the_migrations(place: Bucket, store: DomainStore) -> None:
    async def looks() -> Counter[str]:
        return await watched(place, await watchers_of(place), 4)

    assert asyncio.run(looks()) == {"HEAD": 4 * WATCHERS, "GET": 4 * WATCHERS}


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
    empty = Bucket(place.url)
    empty.root = place.root.parent / "another"

    async def looks() -> Counter[str]:
        return await watched(empty, [Watcher(empty.root)], 3)

    found = asyncio.run(looks())
    assert found["LIST"] == 3
