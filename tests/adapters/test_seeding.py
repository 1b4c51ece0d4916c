"""A mounted store is given what an image carries: once, whole, also by several at a time."""

import multiprocessing
import shutil
from pathlib import Path

import pytest

from isosim.domains.seeding import seed
from isosim.domains.store import DomainStore
from isosim.encoders.store import EncoderStore
from isosim.errors import CorruptArtifact
from tests.encoders import publish


@pytest.fixture
def carried(tiny_store: Path, tmp_path: Path) -> Path:
    """A store as an image has it: an encoder with its default calibration."""
    shutil.copytree(tiny_store / "encoders", tmp_path / "carried" / "encoders")
    publish(tmp_path / "carried", EncoderStore(tmp_path / "carried").find("tiny"))
    return tmp_path / "carried"


def contents(store: Path) -> dict[str, bytes]:
    return {str(f.relative_to(store)): f.read_bytes() for f in store.rglob("*") if f.is_file()}


def test_an_empty_store_gets_encoder_and_default_calibration(carried: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    (copied,) = seed(carried, store)
    original = EncoderStore(carried).find("tiny")
    assert EncoderStore(store).find(f"tiny@{original.digest}") == copied
    assert {f.name: f.read_bytes() for f in copied.folder.iterdir() if f.suffix != ".json"} == {
        f.name: f.read_bytes() for f in original.folder.iterdir() if f.suffix != ".json"
    }
    assert DomainStore(store).aliases("default", copied.digest).champion == 1
    assert DomainStore(store).load("default", 1).manifest["method"] == "identity"


def test_a_second_time_changes_nothing(carried: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    seed(carried, store)
    before = contents(store)
    assert seed(carried, store) == []
    assert contents(store) == before


def test_a_default_calibration_of_the_stores_own_is_kept(carried: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(carried / "encoders", store / "encoders")
    artifact = EncoderStore(store).find("tiny")
    publish(store, artifact)
    mine = publish(store, artifact)
    assert seed(carried, store) == []
    assert DomainStore(store).aliases("default", artifact.digest).champion == mine == 2


def test_several_at_once_make_one_copy_and_one_version(carried: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        copied = pool.starmap(seed, [(carried, store)] * 8)
    assert sum(len(one) for one in copied) == 1
    digest = EncoderStore(carried).find("tiny").digest
    assert DomainStore(store).versions("default") == [1]
    assert DomainStore(store).aliases("default", digest).champion == 1
    assert [f.name for f in (store / "encoders" / "tiny").iterdir()] == [digest]


def test_a_damaged_encoder_is_refused_and_leaves_nothing(carried: Path, tmp_path: Path) -> None:
    (file,) = carried.glob("encoders/tiny/*/encoder.onnx")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CorruptArtifact, match=r"encoder\.onnx"):
        seed(carried, tmp_path / "store")
    assert not list((tmp_path / "store" / "encoders").glob("tiny/*"))


def test_a_store_that_names_no_encoder_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "carried").mkdir()
    assert seed(tmp_path / "carried", tmp_path / "store") == []
