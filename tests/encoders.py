"""Small encoders for the tests."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from isosim.arrays import Vectors
from isosim.store.blobs import opened

if TYPE_CHECKING:
    import onnx


def save_bert(folder: Path, *, seed: int, dim: int, layers: int) -> None:
    """Random weights of a BERT for the tiny vocabulary."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=400, hidden_size=dim, num_hidden_layers=layers, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=64, initializer_range=0.2,
    )  # fmt: skip
    BertModel(config).eval().save_pretrained(folder)


def export(store: Path, name: str, source: str, **options: Any) -> Path:
    from isosim.export import checkpoints, encoder
    from isosim.export.model_store import export as write

    checkpoint = checkpoints.resolve(source)
    wanted = {"pooling": None, "layers": None, "max_length": None, "prompt": ""} | options
    write(store, name, checkpoint, encoder.load(checkpoint, **wanted), lambda _: None)
    return store


def copy_encoders(source: Path, target: Path) -> None:
    """From a store into another one, which may be a bucket."""
    into = opened(target)
    for entry in opened(source).list("encoders/"):
        into.write(entry.key, opened(source).read(entry.key)[0])


def largest_shift(model: "onnx.ModelProto", ids: list[list[int]], alone: Vectors) -> float:
    """Largest change of a cosine of neighbours if texts are encoded in padded batches and not one at a time."""
    import numpy as np
    import onnx

    from isosim.encoders.onnx_engine import OnnxEncoder
    from isosim.scoring.similarity import cosine

    with TemporaryDirectory() as folder:
        onnx.save(model, Path(folder) / "encoder.onnx")
        encoder = OnnxEncoder(Path(folder) / "encoder.onnx", ["CPUExecutionProvider"], 1)
    batches = np.concatenate([encoder(ids[i : i + 32]) for i in range(0, len(ids), 32)])
    return float(np.abs(cosine(batches[:-1], batches[1:]) - cosine(alone[:-1], alone[1:])).max())
