"""A version whose files were changed, or hold what must not be read; a record that cannot be understood."""

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from isosim.domains.store import WEIGHTS, DomainStore, read_parts
from isosim.encoders.store import EncoderArtifact
from isosim.errors import CorruptArtifact
from isosim.scoring.calibration import DomainModel
from tests.core.scoring.references import REFERENCE
from tests.stores import domains_of, files_of, publish, record_of

REFERENCE_FILE = "reference.npz"


@pytest.fixture
def domains(tmp_path: Path, tiny: EncoderArtifact) -> DomainStore:
    """A store with one version of `news`."""
    store = domains_of(tmp_path)
    publish(store, "news", tiny, DomainModel(reference=REFERENCE), {"mean": np.zeros(8, np.float32)})
    return store


@pytest.mark.parametrize("name", [WEIGHTS, REFERENCE_FILE, "report.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_file_is_named(domains: DomainStore, tmp_path: Path, name: str, damage: str) -> None:
    path = files_of(tmp_path, "news", 1) / name
    content = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    else:
        content[len(content) // 2] ^= 0x10
        path.write_bytes(content if damage == "flip" else content[:-1])
    with pytest.raises(CorruptArtifact) as told:
        domains.load("news", 1)
    assert str(path) in str(told.value.place)
    if name == "report.json":
        with pytest.raises(CorruptArtifact, match=r"report\.json of version 1 of 'news'"):
            domains.report("news", 1)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"revision": "x"}',
        b'{"versions": []}',
        b'{"versions": {"1": {"number": 1}}}',
        b'{"aliases": {"d": "x"}}',
        b'{"aliases": {"d": {"champion": "x"}}}',
        b'{"aliases": {"d": {"champion": 1, "previous": [2]}}}',
        b'{"move": {"new": "d"}}',
        b"\xff" * 40,
    ],
)
def test_a_damaged_record_is_corrupt_and_is_not_written_over(
    domains: DomainStore, tmp_path: Path, tiny: EncoderArtifact, content: bytes
) -> None:
    record_of(tmp_path, "news").write_bytes(content)
    calls: list[Callable[[], object]] = [
        lambda: domains.read("news"), lambda: domains.load("news", 1), lambda: publish(domains, "news", tiny),
        lambda: domains.promote("news", tiny.digest, 1), lambda: domains.move("news", None),
        lambda: domains.delete("news", 1), lambda: domains.prune("news", 1),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(CorruptArtifact, match=r"domains/news\.json cannot be read.*isosim store repair news"):
            call()
    assert record_of(tmp_path, "news").read_bytes() == content
    assert domains.repair("news").versions[1].number == 1


def test_a_record_in_the_place_of_another_serves_nothing(domains: DomainStore, tmp_path: Path) -> None:
    shutil.copy(record_of(tmp_path, "news"), record_of(tmp_path, "films"))
    with pytest.raises(CorruptArtifact, match="version 1 of 'films': a file is missing"):
        domains.load("films", 1)


class Loaded:
    """Fails the test where it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return pytest.fail, ("a pickle was loaded",)


def test_a_pickle_among_the_reference_arrays_is_refused_and_not_loaded(tmp_path: Path) -> None:
    arrays = REFERENCE.arrays() | {"similarities": np.array([Loaded()], dtype=object)}
    np.savez(tmp_path / REFERENCE_FILE, allow_pickle=True, **arrays)
    with pytest.raises(CorruptArtifact):
        read_parts(tmp_path, [REFERENCE_FILE], "a version")


@pytest.mark.parametrize(
    "content",
    [b"", b"text", pickle.dumps([1]), b"PK\x03\x04 no zip", b"\x93NUMPY"],
    ids=lambda content: repr(content[:6]),
)
@pytest.mark.parametrize("name", [WEIGHTS, REFERENCE_FILE])
def test_a_file_of_another_kind_is_corrupt(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CorruptArtifact, match="a version cannot be read"):
        read_parts(tmp_path, [name], "a version")


@pytest.mark.parametrize("missing", REFERENCE.arrays())
def test_a_reference_without_one_of_its_arrays_is_corrupt(tmp_path: Path, missing: str) -> None:
    arrays = REFERENCE.arrays()
    del arrays[missing]
    np.savez(tmp_path / REFERENCE_FILE, allow_pickle=False, **arrays)
    with pytest.raises(CorruptArtifact, match=missing):
        read_parts(tmp_path, [REFERENCE_FILE], "a version")
