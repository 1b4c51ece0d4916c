"""Exported encoders in the store: one folder a digest, made once."""

import shutil
from pathlib import Path

import pytest

from isosim.commands.terminal import in_one_line
from isosim.encoders.store import EncoderStore
from isosim.errors import CorruptArtifact
from isosim.export import checkpoints, encoder
from isosim.export.graph import PARITY
from isosim.export.model_store import export
from isosim.store.artifacts import verified


def test_a_second_export_gives_the_same_digest_and_writes_nothing(tiny_checkpoint: Path, store: Path) -> None:
    checkpoint = checkpoints.resolve(str(tiny_checkpoint))
    loaded = encoder.load(checkpoint, max_length=32)
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    said: list[str] = []
    again = export(store, "tiny", checkpoint, loaded, said.append)
    assert again == EncoderStore.at(store).find("tiny")
    assert again.folder.name == again.digest == loaded.spec.digest
    assert any("already has encoder" in line for line in said)
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*") if path in before} == before


def test_an_export_replaces_damaged_files_as_the_refusal_advises(
    tiny_checkpoint: Path, store: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    shutil.copytree(store, own)
    for damage, advice in (("encoder.onnx", "; export it: isosim export --encoder tiny"), ("manifest.json", "")):
        (file,) = own.glob(f"encoders/tiny/*/{damage}")
        sound = file.read_bytes()
        file.write_bytes(sound[:-9])
        with pytest.raises(CorruptArtifact) as refused:
            EncoderStore.at(own).find("tiny")
        assert in_one_line(refused.value).endswith(advice)
        checkpoint = checkpoints.resolve(str(tiny_checkpoint))
        again = export(own, "tiny", checkpoint, encoder.load(checkpoint, max_length=32), lambda _: None)
        assert again == EncoderStore.at(own).find("tiny")
        assert file.read_bytes() == sound or damage == "manifest.json"  # which says when it was made


def test_an_export_holds_the_checkpoints_tokenizer_and_how_well_it_agrees_with_torch(
    tiny_checkpoint: Path, store: Path
) -> None:
    artifact = EncoderStore.at(store).find("tiny")
    assert artifact.tokenizer.read_bytes() == (tiny_checkpoint / "tokenizer.json").read_bytes()
    manifest = verified(artifact.folder)
    assert 0 <= manifest["parity"] <= PARITY
    assert manifest["files"].keys() == {"encoder.onnx", "calibrator.onnx", "tokenizer.json"}
