"""Poolings and layer cuts against transformers' own hidden states; options that do not fit are refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from isosim.encoders.spec import EncoderSpec
from isosim.errors import InvalidInput
from isosim.export import encoder
from isosim.export.checkpoints import Checkpoint, resolve

LENGTHS = [7, 3, 1]  # of the rows below; the rest is padding
IDS = torch.tensor([[2, 17, 350, 44, 99, 5, 3], [2, 8, 3, 0, 0, 0, 0], [2, 0, 0, 0, 0, 0, 0]])
MASK = torch.tensor([[1] * n + [0] * (7 - n) for n in LENGTHS])


def describe(folder: Path, **options: Any) -> EncoderSpec:
    return encoder.load(Checkpoint(folder, "test"), **options).spec


def pooled(folder: Path, **options: Any) -> Tensor:
    with torch.no_grad():
        vectors: Tensor = encoder.load(Checkpoint(folder, "test"), **options)(IDS, MASK)
    return vectors


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


def test_the_default_encoder_keeps_its_digest() -> None:
    """Caches, calibrations and vectors that callers store hang on it; its default calibration is shipped under it."""
    spec = encoder.load(resolve("minilm")).spec
    assert spec.digest == "9f5731ee66d8356acc380ac9202a33907c693fd43cdf64c6e33538f2531314c0"
