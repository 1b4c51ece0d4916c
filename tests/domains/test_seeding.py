"""A default calibration that an image carries becomes a version of the domain `default`, unless that has a champion."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from isosim.domains.seeding import seed_default
from isosim.domains.store import DomainStore
from isosim.errors import CorruptArtifact
from isosim.store.blobs import opened
from tests.domains.test_domains import ENCODER, always, publish
from tests.store.conftest import Open


@pytest.fixture
def carried(tmp_path_factory: pytest.TempPathFactory) -> DomainStore:
    """A store as an image has it, with a default calibration."""
    domains = DomainStore(opened(tmp_path_factory.mktemp("carried")))
    publish(domains, "default", promote=always)
    return domains


def test_stores_that_are_seeded_at_once_get_the_default_calibration_once(carried: DomainStore, place: Open) -> None:
    store = DomainStore(place())
    with ThreadPoolExecutor(4) as pool:
        seeded = set(pool.map(lambda _: seed_default(DomainStore(place()), carried, ENCODER), range(4)))
    assert seeded <= {1, None}
    assert seed_default(store, carried, ENCODER) is None
    record = store.read("default")
    assert (list(record.versions), record.served(ENCODER).champion) == ([1], 1)
    assert record.versions[1].files == carried.read("default").versions[1].files


def test_a_champion_of_the_stores_own_is_kept(carried: DomainStore, place: Open) -> None:
    store = DomainStore(place())
    publish(store, "default", promote=always)
    before = store.read("default")
    assert seed_default(store, carried, ENCODER) is None
    assert store.read("default") == before


def test_a_damaged_or_missing_calibration_leaves_nothing(carried: DomainStore, place: Open, tmp_path: Path) -> None:
    assert seed_default(DomainStore(place()), DomainStore(opened(tmp_path / "empty")), ENCODER) is None
    for key in carried.keys("default", 1):
        carried.blobs.write(key, b"")
    with pytest.raises(CorruptArtifact):
        seed_default(DomainStore(place()), carried, ENCODER)
    assert list(place().list("")) == []
