"""A default calibration that an image carries becomes a version of the domain `default`, unless that has a champion."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from isosim.domains.seeding import seed_default
from isosim.domains.store import DomainStore
from isosim.encoders.store import EncoderArtifact
from isosim.errors import CorruptArtifact
from isosim.store.blobs import opened
from tests.objects import objects  # noqa: F401 - a fixture
from tests.store.conftest import Open, place  # noqa: F401 - fixtures
from tests.stores import publish


@pytest.fixture
def carried(tiny_store: Path, tiny: EncoderArtifact, tmp_path_factory: pytest.TempPathFactory) -> DomainStore:
    """A store as an image has it: an encoder with its default calibration."""
    folder = tmp_path_factory.mktemp("carried")
    shutil.copytree(tiny_store / "encoders", folder / "encoders")
    domains = DomainStore(opened(folder))
    publish(domains, "default", tiny, promote=True)
    return domains


def test_stores_that_are_seeded_at_once_get_the_default_calibration_once(
    carried: DomainStore,
    tiny: EncoderArtifact,
    place: Open,  # noqa: F811
) -> None:
    store = DomainStore(place())
    with ThreadPoolExecutor(4) as pool:
        seeded = set(pool.map(lambda _: seed_default(DomainStore(place()), carried, tiny.digest), range(4)))
    assert seeded <= {1, None}
    assert seed_default(store, carried, tiny.digest) is None
    record = store.read("default")
    assert (list(record.versions), record.served(tiny.digest).champion) == ([1], 1)
    with store.files("default", 1) as (mine, _), carried.files("default", 1) as (theirs, _):
        assert mine.files == theirs.files
    assert not list(store.blobs.list("encoders/"))  # the encoder stays where it is


def test_a_default_calibration_of_the_stores_own_is_kept(
    carried: DomainStore,
    tiny: EncoderArtifact,
    place: Open,  # noqa: F811
) -> None:
    store = DomainStore(place())
    publish(store, "default", tiny)
    mine = publish(store, "default", tiny, promote=True)
    assert seed_default(store, carried, tiny.digest) is None
    assert (store.read("default").served(tiny.digest).champion, len(store.read("default").versions)) == (mine, 2)


def test_a_damaged_calibration_is_refused_and_leaves_nothing(
    carried: DomainStore,
    tiny: EncoderArtifact,
    place: Open,  # noqa: F811
) -> None:
    for key in carried.keys("default", 1):
        carried.blobs.write(key, b"")
    with pytest.raises(CorruptArtifact):
        seed_default(DomainStore(place()), carried, tiny.digest)
    assert list(place().list("")) == []


def test_a_store_without_a_default_calibration_gives_none(
    tiny_store: Path,
    tiny: EncoderArtifact,
    place: Open,  # noqa: F811
) -> None:
    assert seed_default(DomainStore(place()), DomainStore(opened(tiny_store)), tiny.digest) is None
