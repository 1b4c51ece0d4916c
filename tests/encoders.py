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


def vectors(model: "onnx.ModelProto", ids: list[list[int]], batch: int = 1) -> Vectors:
    """Vectors of an encoder graph, computed in padded batches."""
    import numpy as np
    import onnx

    from isosim.encoders.onnx_engine import OnnxEncoder

    with TemporaryDirectory() as folder:
        onnx.save(model, Path(folder) / "encoder.onnx")
        encoder = OnnxEncoder(Path(folder) / "encoder.onnx", 1)
    return np.concatenate([encoder(ids[i : i + batch]) for i in range(0, len(ids), batch)])


def shifts(one: Vectors, other: Vectors) -> Vectors:
    """Changes of the cosines of neighbours."""
    import numpy as np

    from isosim.scoring.similarity import cosine

    changes: Vectors = np.abs(cosine(one[:-1], one[1:]) - cosine(other[:-1], other[1:]))
    return changes
