"""Folders that sentence-transformers saved, against what its own `encode` gives."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from isosim.arrays import Doubles
from isosim.encoders.onnx_engine import OnnxEncoder
from isosim.encoders.store import EncoderStore
from isosim.encoders.tokenizer import FastTokenizer
from isosim.errors import InvalidInput
from isosim.export import encoder
from isosim.export.checkpoints import Checkpoint
from isosim.export.reduced import export_reduced
from isosim.scoring.similarity import normalized
from tests.encoders import export
from tests.modelling.encoder.families import FAMILIES
from tests.text import sentences

Save = Callable[..., Any]

TEXTS = ["boat", "A farmer paints the garden gate.", " ".join(sentences(6)), "Zoë's CAFÉ 🚣"]
PROMPTS = {"query": "The mayor admires: ", "passage": "her cousin sells "}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FAMILIES["bert"].write(tmp_path_factory.mktemp("bert"))


@pytest.fixture
def save(bert: Path, tmp_path: Path) -> Save:
    """Saves the tiny BERT with modules behind it; returns sentence-transformers' model."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Transformer

    def write(*modules: Any, **options: Any) -> Any:
        torch.manual_seed(1)
        model = SentenceTransformer(modules=[Transformer(str(bert)), *(make() for make in modules)], **options)
        model.save(str(tmp_path / "saved"))
        return SentenceTransformer(str(tmp_path / "saved"), device="cpu")

    return write


def in_torch(folder: Path, prompt: str | None = None, **options: Any) -> Doubles:
    """Our module behind our tokenizer, text by text."""
    module = encoder.load(Checkpoint(folder, "test"), prompt=prompt, **options)
    spec, path = module.spec, folder / "served.json"
    path.write_bytes(module.tokenizer)
    tokens = FastTokenizer(path, spec.max_length)([spec.prompt + text for text in TEXTS], "right")
    with torch.no_grad():
        rows = [module(torch.tensor([one.ids]), torch.ones(1, len(one.ids), dtype=torch.long)) for one in tokens]
    vectors: Doubles = torch.cat(rows).numpy()
    assert vectors.shape[1] == spec.dim
    return vectors


def modules() -> Any:
    from sentence_transformers.sentence_transformer import modules as library

    return library


def test_a_saved_model_gives_its_own_vectors_after_export(save: Save, tmp_path: Path) -> None:
    """Two poolings side by side, a linear layer, a norm, and prompts of which one is the default."""
    m = modules()
    model = save(
        lambda: m.Pooling(32, ("mean", "cls")),
        lambda: m.Dense(64, 24),
        lambda: m.LayerNorm(24),
        prompts=PROMPTS,
        default_prompt_name="query",
    )
    (tmp_path / "saved" / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    export(tmp_path / "store", "saved", str(tmp_path / "saved"), prompt=None)
    artifact = EncoderStore.at(tmp_path / "store").find("saved")
    assert (artifact.spec.pooling, artifact.spec.dim, artifact.spec.max_length) == ("mean+cls", 24, 48)
    assert (artifact.licence, artifact.prompts) == ("apache-2.0", {**PROMPTS, "document": ""})
    tokenize, run = FastTokenizer(artifact.tokenizer, 48), OnnxEncoder(artifact.encoder, 1)
    for prompt, name in ((artifact.spec.prompt, None), (artifact.prompts["passage"], "passage")):
        expected = model.encode(TEXTS, normalize_embeddings=False, prompt_name=name)
        vectors = run([one.ids for one in tokenize([prompt + text for text in TEXTS], "right")])
        worst = float(np.abs(vectors - expected).max())
        print(f"largest difference to sentence-transformers' encode, prompt {name}: {worst:.1e}")
        assert worst <= 1e-4
    fp16 = export_reduced(tmp_path / "store", artifact, "fp16", None, lambda _: None)
    assert (fp16.licence, fp16.prompts) == (artifact.licence, artifact.prompts)  # the weights', whatever the precision


def test_a_norm_at_the_end_is_left_out_and_one_before_a_layer_is_not(save: Save, tmp_path: Path) -> None:
    m = modules()
    model = save(
        lambda: m.Pooling(32),
        m.Normalize,
        lambda: m.Dense(32, 32, activation_function=torch.nn.ReLU(), use_residual=True),
        lambda: m.Dense(32, 8, bias=False, activation_function=None, use_residual=True),
        m.Normalize,
    )
    vectors = in_torch(tmp_path / "saved")
    expected: Any = model.encode(TEXTS)
    np.testing.assert_allclose(normalized(vectors.astype(np.float32)), expected, rtol=0, atol=1e-5)
    assert np.abs(np.linalg.norm(vectors, axis=1) - 1).min() > 1e-3


def test_texts_are_lowered_where_the_checkpoint_says_so_and_its_tokenizer_does_not(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    roberta = FAMILIES["roberta"].write(tmp_path / "roberta")
    saved = tmp_path / "saved"
    SentenceTransformer(modules=[Transformer(str(roberta)), Pooling(32)]).save(str(saved))
    plain = in_torch(saved)
    (saved / "sentence_bert_config.json").write_text('{"max_seq_length": 40, "do_lower_case": true}')
    expected = SentenceTransformer(str(saved), device="cpu").encode(TEXTS)
    vectors = in_torch(saved)
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)
    assert np.abs(vectors - plain)[[1, 3]].max() > 0.01


def test_prompts_that_are_not_pooled_with_the_text_are_refused_and_can_be_left_out(save: Save, tmp_path: Path) -> None:
    save(lambda: modules().Pooling(32, include_prompt=False), prompts=PROMPTS, default_prompt_name="query")
    with pytest.raises(InvalidInput, match=r"include_prompt: false.*--prompt ''"):
        in_torch(tmp_path / "saved")
    assert in_torch(tmp_path / "saved", prompt="").shape == (4, 32)
    assert encoder.load(Checkpoint(tmp_path / "saved", "test"), prompt="").prompts == {}
