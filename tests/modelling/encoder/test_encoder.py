"""Poolings and layer cuts against transformers' own hidden states; options that do not fit are refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor
from transformers import AutoModel

from isosim.encoders.spec import EncoderSpec
from isosim.errors import InvalidInput
from isosim.export import encoder
from isosim.export.checkpoints import Checkpoint, resolve
from tests.modelling.encoder.families import by_hand

LENGTHS = [7, 3, 1]  # of the rows below; the rest is padding
IDS = torch.tensor([[2, 17, 350, 44, 99, 5, 3], [2, 8, 3, 0, 0, 0, 0], [2, 0, 0, 0, 0, 0, 0]])
MASK = torch.tensor([[1] * n + [0] * (7 - n) for n in LENGTHS])

POOLINGS = [*Pooling.POOLING_MODES, *encoder.AVERAGES]
Rows = list[Tensor]  # a sentence each, (T, D), padding taken away


@pytest.fixture(scope="module")
def hidden(tiny_checkpoint: Path) -> list[Rows]:
    """Hidden states of the whole model, each sentence run alone."""
    model = AutoModel.from_pretrained(tiny_checkpoint).eval()
    with torch.no_grad():
        alone = [model(IDS[i : i + 1, :n], output_hidden_states=True).hidden_states for i, n in enumerate(LENGTHS)]
    return [[states[layer][0] for states in alone] for layer in range(5)]


def describe(folder: Path, **options: Any) -> EncoderSpec:
    return encoder.load(Checkpoint(folder, "test"), **options).spec


def pooled(folder: Path, **options: Any) -> Tensor:
    with torch.no_grad():
        vectors: Tensor = encoder.load(Checkpoint(folder, "test"), **options)(IDS, MASK)
    return vectors


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("layers", [1, 2, 4])
def test_a_pooling_is_what_its_name_says_of_the_kept_layers(
    tiny_checkpoint: Path, hidden: list[Rows], pooling: str, layers: int
) -> None:
    expected = torch.stack([by_hand(pooling, [layer[row] for layer in hidden[: layers + 1]]) for row in range(3)])
    vectors = pooled(tiny_checkpoint, pooling=pooling, layers=layers)
    torch.testing.assert_close(vectors, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layers": 5}, "--layers 5: this encoder has 4 layers"),
        ({"layers": -1}, "--layers -1: this encoder has 4 layers"),
        ({"pooling": "sum"}, "--pooling 'sum': give one of cls, max, mean"),
        ({"pooling": "cls+sum"}, "--pooling 'cls+sum': give one of cls, max, mean"),
        ({"pooling": "last2avg", "layers": 0}, "do not fit the options"),
        ({"pooling": "first-last-avg", "layers": 0}, "do not fit the options"),
        ({"max_length": 65}, "--max-length 65: this encoder takes 3 to 64 tokens"),
        ({"max_length": 2}, "--max-length 2: this encoder takes 3 to 64 tokens"),
        ({"max_length": 0}, "--max-length 0: this encoder takes 3 to 64 tokens"),
    ],
)
def test_an_option_that_does_not_fit_is_refused_with_what_would(
    tiny_checkpoint: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidInput) as raised:
        describe(tiny_checkpoint, **options)
    assert words in str(raised.value)


Folder = Callable[..., Path]


@pytest.fixture
def folder(tiny_checkpoint: Path, tmp_path: Path) -> Folder:
    """A copy of the tiny checkpoint without some files and with others."""

    def copy(*without: str, **files: object) -> Path:
        place = tmp_path / "copy"
        shutil.copytree(tiny_checkpoint, place, ignore=shutil.ignore_patterns(*without))
        for name, content in files.items():
            path = place / name.replace("__", "/").replace("_json", ".json")
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(content))
        return place

    return copy


def test_options_that_are_not_given_are_read_from_a_sentence_transformers_checkpoint(folder: Folder) -> None:
    stated = {"word_embedding_dimension": 32, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (path, kind) in enumerate([("", "Transformer"), ("1_Pooling", "Pooling")])
    ]
    files = {"modules_json": modules, "1_Pooling__config_json": stated}
    place = folder(**files, sentence_bert_config_json={"max_seq_length": 48})
    assert (describe(place).pooling, describe(place).max_length) == ("cls", 48)
    assert (describe(place, pooling="max").pooling, describe(place, max_length=16).max_length) == ("max", 16)


def test_a_length_that_only_the_tokenizers_settings_state_is_taken_as_far_as_there_are_positions(
    folder: Folder,
) -> None:
    """sentence-transformers 6 keeps it there; 10^30 is transformers' word for none."""
    place = folder(**{"tokenizer_config_json": {"tokenizer_class": "BertTokenizer", "model_max_length": 40}})
    assert describe(place).max_length == 40
    (place / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "model_max_length": 1e30}')
    assert describe(place).max_length == 64


def test_weights_that_are_not_there_are_not_made_up(folder: Folder) -> None:
    place = folder()
    weights = load_file(place / "model.safetensors")
    name = "encoder.layer.2.attention.self.query.weight"
    save_file({key: value for key, value in weights.items() if key != name}, place / "model.safetensors")
    with pytest.raises(InvalidInput, match=f"lacks 1 of the model's weights .{name}"):
        pooled(place)


def test_a_pooler_that_is_not_there_is_not_made_up(folder: Folder) -> None:
    """transformers fills what a checkpoint lacks with random numbers; a pooler nobody asked for does not matter."""
    place = folder()
    weights = load_file(place / "model.safetensors")
    save_file({key: value for key, value in weights.items() if "pooler" not in key}, place / "model.safetensors")
    torch.testing.assert_close(pooled(place, pooling="cls").shape, torch.Size((3, 32)))
    with pytest.raises(InvalidInput, match=r"pooler\.dense\.bias"):
        pooled(place, pooling="pooler")


def test_a_spec_says_everything_the_vectors_depend_on(tiny_checkpoint: Path) -> None:
    spec = describe(tiny_checkpoint, prompt="query: ")
    assert (spec.pooling, spec.layers, spec.max_length, spec.prompt) == ("mean", 4, 64, "query: ")
    assert (spec.dim, spec.pad_token_id, spec.precision) == (32, 0, "fp32")


def test_a_checkpoint_has_one_digest_wherever_it_lies(tiny_checkpoint: Path, folder: Folder) -> None:
    assert describe(folder()).digest == describe(tiny_checkpoint).digest


def test_another_tokenizer_or_other_weights_have_another_digest(tiny_checkpoint: Path, folder: Folder) -> None:
    place, digests = folder(), {describe(tiny_checkpoint).digest}
    with (place / "tokenizer.json").open("a") as file:
        file.write("\n")
    digests.add(describe(place).digest)
    weights = load_file(place / "model.safetensors")
    weights["embeddings.LayerNorm.bias"] += 1
    save_file(weights, place / "model.safetensors")
    digests.add(describe(place).digest)
    assert len(digests) == 3


def test_the_default_encoder_keeps_its_digest() -> None:
    """Caches, calibrations and vectors that callers store hang on it; its default calibration is shipped under it."""
    spec = encoder.load(resolve("minilm")).spec
    assert spec.digest == "9f5731ee66d8356acc380ac9202a33907c693fd43cdf64c6e33538f2531314c0"
