"""What a checkpoint says of itself, and what of it cannot be exported: one line that says what was found."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from isosim.errors import InvalidInput
from isosim.export import checkpoint_config, encoder
from isosim.export.checkpoint_config import tokenizer_json
from isosim.export.checkpoints import Checkpoint, resolve
from tests.modelling.encoder.families import FAMILIES

CHAIN = [("Transformer", ""), ("Pooling", "1_Pooling")]


@pytest.fixture
def place(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    shutil.copytree(tiny_checkpoint, tmp_path / "copy")
    return tmp_path / "copy"


def write(path: Path, value: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))


def config(place: Path, **changes: Any) -> None:
    stated = json.loads((place / "config.json").read_text())
    write(place / "config.json", {**stated, **changes})


def chain(place: Path, *modules: tuple[str, str], package: str = "sentence_transformers.models.") -> None:
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": package + kind} for i, (kind, path) in enumerate(modules)
    ]
    write(place / "modules.json", listed)


def describe(place: Path) -> Any:
    return encoder.describe(Checkpoint(place, "test"), pooling=None, layers=None, max_length=None, prompt=None)


def dense(place: Path, **changes: Any) -> None:
    chain(place, *CHAIN, ("Dense", "2_Dense"))
    write(place / "2_Dense" / "config.json", {"in_features": 32, "out_features": 8, "bias": True, **changes})


REFUSED = {
    "an encoder with a decoder": (
        lambda p: config(p, model_type="t5", is_encoder_decoder=True),
        "is a t5, an encoder with a decoder; only encoders and GPT-2 can be exported",
    ),
    "code of its own": (
        lambda p: config(p, auto_map={"AutoModel": "modeling.Model"}),
        "requires the checkpoint's own code (auto_map), which isosim does not run",
    ),
    "images": (lambda p: config(p, model_type="clip"), "is a clip; these can be exported: albert, bert, camembert"),
    "no kind": (lambda p: write(p / "config.json", {}), "has no model_type in its config.json; these can be exported"),
    "quantized": (
        lambda p: config(p, quantization_config={"quant_method": "gptq"}),
        "is quantized; give the original checkpoint, and --precision to make the encoder smaller",
    ),
    "a decoder": (lambda p: config(p, is_decoder=True), "is a bert used as a decoder (is_decoder)"),
    "no configuration": (lambda p: (p / "config.json").unlink(), "has no config.json; give the folder of"),
    "no JSON": (lambda p: write(p / "config.json", "{"), "config.json is not a JSON object"),
    "an adapter": (
        lambda p: (p / "config.json").rename(p / "adapter_config.json"),
        "holds an adapter without its model; merge it (merge_and_unload)",
    ),
    "no fast tokenizer": (
        lambda p: (p / "tokenizer.json").unlink(),
        "has no tokenizer.json (a fast tokenizer is needed); transformers may be able to make one: AutoTokenizer",
    ),
    "a tokenizer without content": (lambda p: write(p / "tokenizer.json", "{}"), "tokenizer.json cannot be read"),
    "pickled weights": (
        lambda p: (p / "model.safetensors").rename(p / "pytorch_model.bin"),
        "has no *.safetensors weights, and pickled weights are refused; if you trust them, load the model",
    ),
    "a cross-encoder": (
        lambda p: write(p / "config_sentence_transformers.json", {"model_type": "CrossEncoder"}),
        "is a CrossEncoder; only encoders that give one dense vector per text can be exported",
    ),
    "a module that cannot be in the graph": (
        lambda p: chain(p, *CHAIN, ("LSTM", "2_LSTM")),
        "has a module 'sentence_transformers.models.LSTM', which cannot be exported; exportable are Transformer",
    ),
    "a module of somebody's own": (
        lambda p: chain(p, *CHAIN, package="custom_st."),
        "has a module 'custom_st.Transformer', which cannot be exported",
    ),
    "no pooling": (lambda p: chain(p, ("Transformer", "")), "has the modules Transformer; a Transformer followed by"),
    "a layer on tokens": (
        lambda p: chain(p, ("Transformer", ""), ("Dense", "1_Dense"), ("Pooling", "2_Pooling")),
        "has a Dense before its pooling, which cannot be exported",
    ),
    "a pooling nobody knows": (
        lambda p: write(p / "1_Pooling" / "config.json", {"pooling_mode": "attention"}),
        "pools by 'attention', which isosim does not support; give --pooling",
    ),
    "a pickled layer": (dense, "2_Dense has no model.safetensors; pickled weights are refused"),
    "a layer of another size": (
        lambda p: dense(p, in_features=16),
        "2_Dense takes 16 dimensions, but the pooling gives 32; give another --pooling",
    ),
    "a layer without sizes": (lambda p: dense(p, in_features=None), "2_Dense has no in_features"),
    "a layer on other vectors": (
        lambda p: dense(p, module_input_name="token_embeddings"),
        "works on {'token_embeddings'} instead of the sentence's vector",
    ),
    "a default prompt without text": (
        lambda p: write(p / "config_sentence_transformers.json", {"prompts": {}, "default_prompt_name": "query"}),
        "names 'query' as its default prompt but has no such prompt; give --prompt",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_exported_is_refused_in_one_line(place: Path, what: str) -> None:
    change, words = REFUSED[what]
    change(place)
    with pytest.raises(InvalidInput) as raised:
        describe(place)
    message = str(raised.value)
    assert words in message
    assert "\n" not in message
    assert str(place) in message


def test_an_activation_is_one_of_torchs_or_refused(place: Path) -> None:
    from safetensors.torch import save_file
    from torch import nn

    dense(place, activation_function="os.system")
    save_file({f"linear.{k}": v for k, v in nn.Linear(32, 8).state_dict().items()}, place / "2_Dense/model.safetensors")
    with pytest.raises(InvalidInput, match=r"the activation 'os.system'; only those of torch.nn can be exported"):
        describe(place)
    dense(place, activation_function="torch.nn.modules.activation.GELU")
    assert describe(place).dim == 8


def test_a_transformer_in_a_folder_of_its_own_is_found(place: Path, tmp_path: Path) -> None:
    """As sentence-transformers before 2.0 saved it."""
    whole = tmp_path / "whole"
    whole.mkdir()
    place.rename(whole / "0_Transformer")
    chain(whole, ("Transformer", "0_Transformer"), ("Pooling", "1_Pooling"))
    write(whole / "1_Pooling" / "config.json", {"pooling_mode_max_tokens": True})
    spec = describe(whole)
    assert (spec.pooling, spec.weights) == ("max", encoder.weights_digest(whole / "0_Transformer"))


def test_the_default_prompt_stands_before_texts_unless_another_is_given(place: Path) -> None:
    prompts = {"query": "query: ", "passage": "passage: "}
    write(place / "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": "query"})
    assert describe(place).prompt == "query: "
    options: dict[str, Any] = {"pooling": None, "layers": None, "max_length": None}
    assert encoder.describe(Checkpoint(place, "test"), prompt="", **options).prompt == ""
    assert encoder.prompts_of(checkpoint_config.read(place)) == prompts
    write(place / "config_sentence_transformers.json", {"prompts": prompts})
    assert describe(place).prompt == ""


@pytest.mark.parametrize(
    ("files", "licence"),
    [
        ({"README.md": "---\nlanguage: en\nlicense: apache-2.0\n---\n# A model\n"}, "apache-2.0"),
        ({"README.md": "---\nlicense:\n- mit\n- cc-by-4.0\n---\n"}, "mit, cc-by-4.0"),
        ({"README.md": "---\nlicense: other\nlicense_name: boats\n---\n"}, "other (boats)"),
        ({"README.md": "---\ntags: [a]\n---\n", "LICENSE.txt": "\n  MIT License\n\nText"}, "MIT License (LICENSE.txt)"),
        ({"README.md": "---\n: [\n---\n"}, "not stated"),
        ({"README.md": "license: mit\n"}, "not stated"),
        ({}, "not stated"),
    ],
)
def test_the_licence_is_the_readmes_or_the_licence_files(tmp_path: Path, files: dict[str, str], licence: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    assert checkpoint_config.licence_of(tmp_path) == licence


def test_a_packaged_checkpoints_licence_is_the_tables() -> None:
    assert resolve("minilm").licence == "Apache-2.0 (weights), MIT (package)"


def test_a_tokenizer_is_taken_as_it_stands_where_transformers_reads_it_so(tmp_path: Path) -> None:
    folder = FAMILIES["mpnet"].write(tmp_path / "mpnet")
    assert tokenizer_json(checkpoint_config.read(folder)) == (folder / "tokenizer.json").read_bytes()


def test_special_tokens_that_tokenizer_json_does_not_add_are_added_as_transformers_does(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    folder = FAMILIES["roberta"].write(tmp_path / "roberta", surrounded=False)
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode("a boat").ids
    served = Tokenizer.from_str(tokenizer_json(checkpoint_config.read(folder)).decode())
    assert served.encode("a boat").ids == [0, *ids, 2]
