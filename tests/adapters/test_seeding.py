"""A default calibration that an image carries becomes a version of the domain `default`, unless that has a champion."""

import shutil
from pathlib import Path

import pytest

from isosim.domains.seeding import seed_default
from isosim.domains.store import DomainStore
from isosim.encoders.store import EncoderArtifact, EncoderStore
from isosim.errors import CorruptArtifact
from tests.encoders import publish


@pytest.fixture
def carried(tiny_store: Path, tiny: EncoderArtifact, tmp_path: Path) -> Path:
    """A store as an image has it: an encoder with its default calibration."""
    shutil.copytree(tiny_store / "encoders", tmp_path / "carried" / "encoders")
    publish(tmp_path / "carried", tiny)
    return tmp_path / "carried"


def test_an_empty_store_gets_the_default_calibration_once(carried: Path, tiny: EncoderArtifact, tmp_path: Path) -> None:
    store = DomainStore(tmp_path / "store")
    assert seed_default(store, carried, tiny.digest) == 1
    assert seed_default(store, carried, tiny.digest) is None
    assert store.versions("default") == [1]
    assert store.aliases("default", tiny.digest).champion == 1
    assert store.load("default", 1).manifest["method"] == "identity"
    assert EncoderStore.at(tmp_path / "store").ids() == []  # the encoder stays where it is


def test_a_default_calibration_of_the_stores_own_is_kept(carried: Path, tiny: EncoderArtifact, tmp_path: Path) -> None:
    publish(tmp_path / "store", tiny)
    mine = publish(tmp_path / "store", tiny)
    store = DomainStore(tmp_path / "store")
    assert seed_default(store, carried, tiny.digest) is None
    assert store.aliases("default", tiny.digest).champion == mine == 2


def test_a_damaged_calibration_is_refused_and_leaves_nothing(
    carried: Path, tiny: EncoderArtifact, tmp_path: Path
) -> None:
    for file in (carried / "domains" / "default" / "1").iterdir():
        file.write_bytes(b"")
    with pytest.raises(CorruptArtifact):
        seed_default(DomainStore(tmp_path / "store"), carried, tiny.digest)
    assert DomainStore(tmp_path / "store").versions("default") == []


def test_a_store_without_a_default_calibration_gives_none(
    tiny_store: Path, tiny: EncoderArtifact, tmp_path: Path
) -> None:
    assert seed_default(DomainStore(tmp_path / "store"), tiny_store, tiny.digest) is None
