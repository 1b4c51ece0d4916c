"""A version whose files were changed, or hold what must not be read."""

import io
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from isosim.domains.store import WEIGHTS, DomainStore, read_version
from isosim.errors import CorruptArtifact, Unavailable
from isosim.scoring.calibration import DomainModel
from isosim.store.artifacts import building, read_json, read_manifest, seal, sealed_by, write_json
from tests.core.scoring.references import REFERENCE as DISTRIBUTION


@pytest.fixture
def domains(tmp_path: Path) -> DomainStore:
    """A store with one version of `news`."""
    store = DomainStore(tmp_path)
    facts = {"method": "sn", "encoder": {"id": "tiny", "digest": "d"}}
    store.publish(
        "news", facts, {"sentences": 1}, {"mean": np.zeros(8, np.float32)}, DomainModel(reference=DISTRIBUTION)
    )
    return store


@pytest.fixture
def resealed(tmp_path: Path) -> Callable[..., Path]:
    """A version with given content in its files and hashes that are right."""

    def make(**contents: bytes) -> Path:
        place = tmp_path / "resealed"
        with building(tmp_path) as folder:
            (folder / "report.json").write_text("{}")
            for name, content in contents.items():
                (folder / {"weights": WEIGHTS, "reference": "reference.npz"}[name]).write_bytes(content)
            seal(folder, place, {})
        return place

    return make


@pytest.mark.parametrize("name", [WEIGHTS, "reference.npz", "report.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_file_is_named(domains: DomainStore, name: str, damage: str) -> None:
    path = domains.root / "news" / "1" / name
    content = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    else:
        content[len(content) // 2] ^= 0x10
        path.write_bytes(content if damage == "flip" else content[:-1])
    with pytest.raises(CorruptArtifact, match=name.replace(".", r"\.")):
        domains.load("news", 1)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"files": []}', b'{"files": {}, "encoder": 1}'])
def test_a_damaged_manifest_is_corrupt_and_named(domains: DomainStore, content: bytes) -> None:
    (domains.root / "news" / "1" / "manifest.json").write_bytes(content)
    with pytest.raises(CorruptArtifact, match=r"manifest\.json|news/1"):
        domains.load("news", 1)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"{}",
        b'{"revision": 1}',
        b'{"revision": 1, "encoders": []}',
        b'{"revision": "1", "encoders": {}}',
        b'{"revision": 1, "encoders": {"d": "x"}}',
        b'{"revision": 1, "encoders": {"d": {"champion": "1"}}}',
        b'{"revision": 1, "encoders": {"d": {"champion": 1, "previous": [2]}}}',
    ],
)
def test_damaged_aliases_are_corrupt_and_named(domains: DomainStore, content: bytes) -> None:
    (domains.root / "news" / "aliases.json").write_bytes(content)
    with pytest.raises(CorruptArtifact, match=r"aliases\.json"):
        domains.aliases("news", "d")


def rewritten(domains: DomainStore, **facts: object) -> None:
    """The manifest says something else, with its seal right."""
    folder = domains.root / "news" / "1"
    manifest = {**read_manifest(folder), **facts}
    write_json(folder / "manifest.json", {**manifest, "seal": sealed_by(manifest)})


@pytest.mark.parametrize("facts", [{"version": 2}, {"domain": "films"}])
def test_a_version_in_the_place_of_another_is_refused(domains: DomainStore, facts: dict[str, object]) -> None:
    rewritten(domains, **facts)
    with pytest.raises(CorruptArtifact, match="belongs to version"):
        domains.load("news", 1)


@pytest.mark.parametrize("form", [2, 99, "1", None, [1]])
def test_a_version_of_a_newer_release_is_refused_and_the_remedy_named(domains: DomainStore, form: object) -> None:
    rewritten(domains, format=form)
    with pytest.raises(Unavailable, match=r"newer release.*promote an older version"):
        domains.load("news", 1)


def test_a_version_of_the_first_release_names_no_format_and_is_read(domains: DomainStore) -> None:
    folder = domains.root / "news" / "1"
    manifest = read_json(folder / "manifest.json")
    del manifest["format"], manifest["seal"]
    write_json(folder / "manifest.json", manifest)
    assert domains.load("news", 1).weights is not None


class Loaded:
    """Fails the test where it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return pytest.fail, ("a pickle was loaded",)


def pickled_npz() -> bytes:
    file = io.BytesIO()
    arrays = DISTRIBUTION.arrays() | {"similarities": np.array([Loaded()], dtype=object)}
    np.savez(file, allow_pickle=True, **arrays)
    return file.getvalue()


def test_a_pickle_among_the_reference_arrays_is_refused_and_not_loaded(resealed: Callable[..., Path]) -> None:
    with pytest.raises(CorruptArtifact):
        read_version(resealed(reference=pickled_npz()))


@pytest.mark.parametrize(
    "content",
    [b"", b"text", pickle.dumps([1]), b"PK\x03\x04 no zip", b"\x93NUMPY"],
    ids=lambda content: repr(content[:6]),
)
@pytest.mark.parametrize("name", ["weights", "reference"])
def test_a_file_of_another_kind_is_corrupt(resealed: Callable[..., Path], name: str, content: bytes) -> None:
    with pytest.raises(CorruptArtifact):
        read_version(resealed(**{name: content}))


@pytest.mark.parametrize("missing", DISTRIBUTION.arrays())
def test_a_reference_without_one_of_its_arrays_is_corrupt(resealed: Callable[..., Path], missing: str) -> None:
    arrays = DISTRIBUTION.arrays()
    del arrays[missing]
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    with pytest.raises(CorruptArtifact, match=missing):
        read_version(resealed(reference=file.getvalue()))


def test_a_version_copied_to_another_store_is_whole(domains: DomainStore, tmp_path: Path) -> None:
    shutil.copytree(domains.root / "news" / "1", tmp_path / "copy")
    assert read_version(tmp_path / "copy").weights is not None
    assert json.loads((tmp_path / "copy" / "manifest.json").read_text())["version"] == 1
