"""Exported encoders in the store: one folder a digest, made once."""

from pathlib import Path

from isosim.encoders.store import EncoderStore
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


def test_an_export_holds_the_checkpoints_tokenizer_and_how_well_it_agrees_with_torch(
    tiny_checkpoint: Path, store: Path
) -> None:
    artifact = EncoderStore.at(store).find("tiny")
    assert artifact.tokenizer.read_bytes() == (tiny_checkpoint / "tokenizer.json").read_bytes()
    manifest = verified(artifact.folder)
    assert 0 <= manifest["parity"] <= PARITY
    assert manifest["files"].keys() == {"encoder.onnx", "calibrator.onnx", "tokenizer.json"}
