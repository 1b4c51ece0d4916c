"""Exported encoders: the newest or the pinned one, whole or refused."""

import dataclasses
import json
import shutil
import time
from pathlib import Path

import pytest

from isosim.encoders.spec import EncoderSpec
from isosim.encoders.store import EncoderArtifact, EncoderStore
from isosim.errors import CorruptArtifact, InvalidInput, Unavailable
from isosim.store.artifacts import read_manifest, sealed_by, write_json

FILES = ("model.onnx", "encoder.onnx", "calibrator.onnx", "tokenizer.json")
SPEC = EncoderSpec("somewhere", "w", "t", "mean", 6, 256, "", "fp32", 384, 0)


@pytest.fixture
def encoders(tmp_path: Path) -> EncoderStore:
    return EncoderStore(tmp_path)


def add(encoders: EncoderStore, name: str = "bert", **changes: object) -> EncoderArtifact:
    def write(folder: Path) -> dict[str, object]:
        for file in FILES:
            (folder / file).write_bytes(file.encode())
        return {"parity": 1e-6}

    return encoders.add(name, dataclasses.replace(SPEC, **changes), write)  # type: ignore[arg-type]


def test_what_was_added_is_found_by_its_name(encoders: EncoderStore) -> None:
    added = add(encoders)
    found = encoders.find("bert")
    assert found == added
    assert (found.spec, found.digest, found.folder.name) == (SPEC, SPEC.digest, SPEC.digest)
    assert found.joined.read_bytes() == b"model.onnx"
    assert [p.name for p in (found.encoder, found.calibrator, found.tokenizer)] == list(FILES[1:])
    assert encoders.has("bert", SPEC.digest)
    assert not encoders.has("bert", "0" * 64)


def test_the_newest_export_answers_and_an_older_one_where_it_is_pinned(encoders: EncoderStore) -> None:
    older = add(encoders, layers=3)
    time.sleep(0.002)
    newer = add(encoders, layers=6)
    assert encoders.find("bert") == newer
    assert encoders.find(f"bert@{older.digest}") == older
    assert encoders.find(f"bert@{older.digest[:12]}") == older


@pytest.mark.parametrize("name", ["bert", "bert@0000", "gpt", "gpt@1234"])
def test_an_encoder_that_is_not_there_is_unavailable_with_the_remedy(encoders: EncoderStore, name: str) -> None:
    if "@" in name:
        add(encoders)
    with pytest.raises(Unavailable, match="isosim export"):
        encoders.find(name)


@pytest.mark.parametrize("name", FILES[1:])
def test_a_changed_file_is_named(encoders: EncoderStore, name: str) -> None:
    artifact = add(encoders)
    (artifact.folder / name).write_bytes(b"other")
    with pytest.raises(CorruptArtifact, match=name.replace(".", r"\.")):
        encoders.find("bert")


def test_an_encoder_in_another_ones_place_is_refused(encoders: EncoderStore) -> None:
    artifact = add(encoders)
    artifact.folder.rename(artifact.folder.with_name("0" * 64))
    with pytest.raises(CorruptArtifact, match="another encoder"):
        encoders.find("bert")


def test_an_export_of_a_release_that_computes_other_vectors_is_refused_and_the_remedy_named(
    encoders: EncoderStore,
) -> None:
    """As after a raise of GRAPH_FORMAT: the digest it was stored under is no longer what its recipe gives."""
    artifact = add(encoders)
    before = artifact.folder.rename(artifact.folder.with_name("0" * 64))
    manifest = {**read_manifest(before), "digest": before.name}
    write_json(before / "manifest.json", {**manifest, "seal": sealed_by(manifest)})
    with pytest.raises(Unavailable, match=r"isosim export --encoder .*calibrate"):
        encoders.find("bert")


@pytest.mark.parametrize("damage", ["no spec", "a field missing", "a field too many", "no json"])
def test_a_damaged_manifest_is_corrupt(encoders: EncoderStore, damage: str) -> None:
    path = add(encoders).folder / "manifest.json"
    manifest = json.loads(path.read_text())
    match damage:
        case "no spec":
            del manifest["encoder"]
        case "a field missing":
            del manifest["encoder"]["dim"]
        case "a field too many":
            manifest["encoder"]["colour"] = "blue"
    path.write_text("{" if damage == "no json" else json.dumps(manifest))
    with pytest.raises(CorruptArtifact, match=r"manifest\.json"):
        encoders.find("bert")


def test_what_a_killed_export_left_behind_is_not_seen(encoders: EncoderStore) -> None:
    """Killed after the manifest was written and before the folder was moved to its place."""
    whole = add(encoders)
    left = whole.folder.with_name(".building-0123456789abcdef")
    shutil.copytree(whole.folder, left)
    manifest = json.loads((left / "manifest.json").read_text())
    (left / "manifest.json").write_text(json.dumps(manifest | {"created": "9999-12-31T00:00:00+00:00"}))
    assert encoders.find("bert") == whole
    shutil.rmtree(whole.folder)
    with pytest.raises(Unavailable):
        encoders.find("bert")


def test_an_export_that_fails_leaves_nothing(encoders: EncoderStore) -> None:
    def fail(folder: Path) -> dict[str, object]:
        (folder / "model.onnx").write_bytes(b"half")
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        encoders.add("bert", SPEC, fail)
    with pytest.raises(Unavailable):
        encoders.find("bert")
    assert not [path for path in encoders.root.rglob("*") if path.is_file()]


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", ".hidden", "-x", "a b", "a@b", "a\0"])
def test_a_name_that_is_no_folders_name_is_refused(encoders: EncoderStore, name: str) -> None:
    with pytest.raises(InvalidInput, match="encoder id"):
        add(encoders, name)
    assert not encoders.root.exists()


@pytest.mark.parametrize("name", ["..", "*", "ber*", "", "/"])
def test_a_name_is_looked_up_as_it_stands(encoders: EncoderStore, name: str) -> None:
    add(encoders)
    with pytest.raises((Unavailable, InvalidInput)):
        encoders.find(name)
