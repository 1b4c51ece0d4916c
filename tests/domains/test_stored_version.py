"""A version whose files were changed, or hold what must not be read."""

import io
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isosim.domains.store import WEIGHTS, DomainStore, read_parts
from isosim.encoders.store import EncoderArtifact
from isosim.errors import CorruptArtifact
from isosim.scoring.calibration import DomainModel
from tests.core.scoring.references import REFERENCE
from tests.stores import domains_of, files_of, publish, record_of


@pytest.fixture
def domains(tmp_path: Path, tiny: EncoderArtifact) -> DomainStore:
    """A store with one version of `news`."""
    store = domains_of(tmp_path)
    publish(store, "news", tiny, DomainModel(reference=REFERENCE), {"mean": np.zeros(8, np.float32)})
    return store


@pytest.mark.parametrize("name", [WEIGHTS, "reference.npz", "report.json"])
@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda content: content[:-1] + b"?", None])
def test_a_damaged_file_is_named(domains: DomainStore, tmp_path: Path, name: str, damage: Any) -> None:
    path = files_of(tmp_path, "news", 1) / name
    path.unlink() if damage is None else path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CorruptArtifact) as told:
        domains.load("news", 1)
    assert str(path) in str(told.value.place)
    with pytest.raises(CorruptArtifact, match=r"of 'news'") if name == "report.json" else nullcontext():
        domains.report("news", 1)


def test_what_lies_elsewhere_is_no_file_of_a_version(domains: DomainStore, tmp_path: Path) -> None:
    """Who may write the bucket must not write files of the servers."""
    shutil.copy(record_of(tmp_path, "news"), record_of(tmp_path, "films"))  # in the place of another
    with pytest.raises(CorruptArtifact, match="version 1 of 'films': a file is missing"):
        domains.load("films", 1)
    version = domains.read("news").versions[1]
    for name in (str(tmp_path / "victim"), "../victim", ""):
        domains.change("news", lambda domain: replace(domain, versions={1: replace(version, files={name: ""})}))  # noqa: B023
        with pytest.raises(CorruptArtifact, match="not the name of a file"):
            domains.load("news", 1)


def test_what_cannot_be_read_is_corrupt_and_no_pickle_is_loaded(tmp_path: Path) -> None:
    def npz(**changes: Any) -> bytes:
        out, arrays = io.BytesIO(), REFERENCE.arrays() | changes
        np.savez(out, **{name: array for name, array in arrays.items() if array is not None})
        return out.getvalue()

    unreadable = {b"": "", b"text": "", b"PK\x03\x04 no zip": "", b"\x93NUMPY": ""}
    incomplete = {npz(**{missing: None}): missing for missing in REFERENCE.arrays()}
    pickled = {npz(similarities=np.array([{}], dtype=object)): "allow_pickle"}
    for name, contents in ((WEIGHTS, unreadable), ("reference.npz", unreadable | incomplete | pickled)):
        for content, told in contents.items():
            (tmp_path / name).write_bytes(content)
            with pytest.raises(CorruptArtifact, match=f"a version cannot be read.*{told}"):
                read_parts(tmp_path, [name], "a version")
