"""Exports of the tiny encoder: poolings, layers, graphs, store and bundle."""

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor
from transformers import AutoModel

from isosim.arrays import Weights
from isosim.commands.terminal import in_one_line
from isosim.domains.domain import Version
from isosim.domains.store import StoredVersion
from isosim.encoders.onnx_engine import PREFIX, OnnxCalibrator, open_session
from isosim.encoders.spec import EncoderSpec
from isosim.encoders.store import EncoderArtifact, EncoderStore
from isosim.errors import CorruptArtifact, InvalidInput
from isosim.export import checkpoints, encoder
from isosim.export.checkpoints import Checkpoint, resolve
from isosim.export.graph import PARITY, check_parity, joined_graph, random_weights
from isosim.export.model_store import bundle, export
from isosim.fitting.calibrator import Calibrator
from isosim.scoring.calibration import DomainModel
from isosim.store.artifacts import verified
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


@pytest.mark.parametrize(
    ("lost", "pooling", "said"),
    [
        ("encoder.layer.2.attention.self.query.weight", "mean", "lacks 1 of the model's weights .encoder.layer.2"),
        ("pooler", "pooler", r"pooler\.dense\.bias"),
        ("pooler", "cls", None),  # a pooler that is not used does not matter
    ],
)
def test_weights_that_are_not_there_are_not_made_up(folder: Folder, lost: str, pooling: str, said: str | None) -> None:
    """transformers fills what a checkpoint lacks with random numbers."""
    place = folder()
    weights = load_file(place / "model.safetensors")
    save_file({key: value for key, value in weights.items() if lost not in key}, place / "model.safetensors")
    if said is None:
        assert pooled(place, pooling=pooling).shape == (3, 32)
        return
    with pytest.raises(InvalidInput, match=said):
        pooled(place, pooling=pooling)


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


Feeds = dict[str, npt.NDArray[np.generic]]
WEIGHTS = random_weights(32, seed=3)
OVERRIDES: Feeds = {PREFIX + name: tensor.numpy() for name, tensor in WEIGHTS.items()}


@pytest.fixture(scope="module")
def joined(tiny: EncoderArtifact) -> ort.InferenceSession:
    return open_session(joined_graph(tiny).SerializeToString(), threads=1)


def tokens(batch: int, length: int) -> Feeds:
    """Random ids; of several rows all but the first are padded."""
    rng = np.random.default_rng(batch * length)
    mask = np.arange(length) < np.append(length, rng.integers(1, length + 1, batch - 1))[:, None]
    ids = np.where(mask, rng.integers(5, 400, mask.shape), 0)
    return {"input_ids": ids, "attention_mask": mask.astype(np.int64), "token_type_ids": np.zeros_like(ids)}


def run(joined: ort.InferenceSession, feeds: Feeds) -> list[npt.NDArray[np.float32]]:
    """Pooled vectors and latents."""
    return list(joined.run(["pooled", "latent"], feeds))


def test_the_calibrators_weights_move_latent_and_not_one_bit_of_pooled(joined: ort.InferenceSession) -> None:
    feeds = tokens(7, 5)
    plain, replaced = run(joined, feeds), run(joined, feeds | OVERRIDES)
    np.testing.assert_array_equal(plain[0], replaced[0])
    np.testing.assert_array_equal(plain[0], plain[1])  # identity until weights are passed
    assert np.abs(replaced[1] - replaced[0]).max() > 0.1


def test_each_single_weight_is_an_input_of_its_own(joined: ort.InferenceSession) -> None:
    """An optimizer that merges equal tensors or folds one away would leave fewer, or some without effect."""
    names = {value.name for value in joined.get_overridable_initializers()}
    assert names == {PREFIX + name for name in Calibrator(32).state_dict()}
    feeds = tokens(2, 5)
    pooled = torch.from_numpy(run(joined, feeds)[0])
    others = random_weights(32, seed=4)
    for name in WEIGHTS:
        mixed = WEIGHTS | {name: others[name]}
        latent = run(joined, feeds | OVERRIDES | {PREFIX + name: others[name].numpy()})[1]
        np.testing.assert_allclose(latent, Calibrator.from_weights(mixed)(pooled).numpy(), rtol=0, atol=1e-4)


def test_the_graphs_cut_out_give_the_joined_graphs_bits(joined: ort.InferenceSession, tiny: EncoderArtifact) -> None:
    bound = OnnxCalibrator(tiny.calibrator).bind({name: tensor.numpy() for name, tensor in WEIGHTS.items()})
    cut = open_session(tiny.encoder, threads=1)
    for shape in ((1, 1), (2, 30), (19, 12)):
        feeds = tokens(*shape)
        pooled, latent = run(joined, feeds | OVERRIDES)
        np.testing.assert_array_equal(cut.run(["pooled"], feeds)[0], pooled)
        np.testing.assert_array_equal(bound(pooled), latent)


def test_a_graphs_inputs_and_outputs_have_their_names_and_open_sizes(joined: ort.InferenceSession) -> None:
    inputs = {value.name: value.shape for value in joined.get_inputs()}
    assert inputs == {key: ["batch", "length"] for key in ("input_ids", "attention_mask", "token_type_ids")}
    outputs = {value.name: value.shape for value in joined.get_outputs()}
    assert outputs == {"pooled": ["batch", 32], "latent": ["batch", 32]}


def test_the_parity_check_of_an_export_notices_a_graph_that_is_not_the_encoders(
    tiny: EncoderArtifact, tiny_checkpoint: Path
) -> None:
    module = encoder.load(checkpoints.resolve(str(tiny_checkpoint)), pooling="mean")
    assert check_parity(module, joined_graph(tiny)) <= 1e-4
    other = copy.deepcopy(module)
    other.model[1].pooling_mode = "max"  # type: ignore[assignment]
    with pytest.raises(ArithmeticError, match="differ"):
        check_parity(other, joined_graph(tiny))


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


def test_an_export_replaces_a_damaged_file_as_the_refusal_advises(tiny_checkpoint: Path, store: Path) -> None:
    (file,) = store.glob("encoders/tiny/*/encoder.onnx")
    sound = file.read_bytes()
    file.write_bytes(sound[:-9])
    with pytest.raises(CorruptArtifact) as refused:
        EncoderStore.at(store).find("tiny")
    assert in_one_line(refused.value).endswith("; export it: isosim export --encoder tiny")
    checkpoint = checkpoints.resolve(str(tiny_checkpoint))
    again = export(store, "tiny", checkpoint, encoder.load(checkpoint, max_length=32), lambda _: None)
    assert again == EncoderStore.at(store).find("tiny")
    assert file.read_bytes() == sound


def test_an_export_holds_the_checkpoints_tokenizer_and_how_well_it_agrees_with_torch(
    tiny_checkpoint: Path, store: Path
) -> None:
    artifact = EncoderStore.at(store).find("tiny")
    assert artifact.tokenizer.read_bytes() == (tiny_checkpoint / "tokenizer.json").read_bytes()
    manifest = verified(artifact.folder)
    assert 0 <= manifest["parity"] <= PARITY
    assert manifest["files"].keys() == {"encoder.onnx", "calibrator.onnx", "tokenizer.json"}


ROWS = np.array([[2, 17, 350, 44, 99, 5, 3], [2, 8, 3, 0, 0, 0, 0]])
TOKENS = {"input_ids": ROWS, "attention_mask": (ROWS > 0).astype(np.int64), "token_type_ids": np.zeros_like(ROWS)}
VERSION = Version(3, "a" * 64, "tiny", "flow", {}, "", "")


@pytest.fixture(scope="module")
def weights(tiny: EncoderArtifact) -> Weights:
    return {name: tensor.numpy() for name, tensor in random_weights(tiny.spec.dim, seed=5).items()}


@pytest.fixture(scope="module")
def bundled(tiny: EncoderArtifact, weights: Weights, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "model.onnx"
    bundle(tiny, "letters", StoredVersion(VERSION, weights, DomainModel()), path)
    return path


def test_a_bundle_gives_the_encoders_bits_and_the_calibrators_without_being_passed_weights(
    tiny: EncoderArtifact, weights: Weights, bundled: Path
) -> None:
    (expected_pooled,) = open_session(tiny.encoder, threads=1).run(["pooled"], TOKENS)
    given = {PREFIX + name: array for name, array in weights.items()} | {"pooled": expected_pooled}
    (expected_latent,) = open_session(tiny.calibrator, threads=1).run(["latent"], given)
    pooled, latent = open_session(bundled, threads=1).run(["pooled", "latent"], TOKENS)
    np.testing.assert_array_equal(pooled, expected_pooled)
    np.testing.assert_allclose(latent, expected_latent, rtol=0, atol=1e-4)
    assert np.abs(latent - pooled).max() > 0.1
    session = open_session(bundled, threads=1)
    assert {value.name for value in session.get_inputs()} == set(TOKENS)
    assert session.get_overridable_initializers() == []


def test_a_bundle_runs_on_a_plain_onnx_runtime_and_says_where_it_comes_from(
    tiny: EncoderArtifact, bundled: Path
) -> None:
    facts = ort.InferenceSession(bundled, providers=["CPUExecutionProvider"]).get_modelmeta().custom_metadata_map
    assert facts["isosim.domain"] == "letters"
    assert facts["isosim.version"] == "3"
    assert facts["isosim.method"] == "flow"
    assert facts["isosim.encoder"] == tiny.digest
    assert facts["isosim.max_length"] == "32"


def test_the_stores_graph_is_not_touched_and_a_changed_one_is_refused(store: Path, tmp_path: Path) -> None:
    encoder = EncoderStore.at(store).find("tiny")
    before = encoder.encoder.read_bytes()
    bundle(encoder, "letters", StoredVersion(VERSION, None, DomainModel()), tmp_path / "model.onnx")
    assert encoder.encoder.read_bytes() == before
    pooled, latent = open_session(tmp_path / "model.onnx", threads=1).run(["pooled", "latent"], TOKENS)
    np.testing.assert_array_equal(pooled, latent)  # identity
    onnx.save(onnx.load(tmp_path / "model.onnx"), encoder.encoder)
    with pytest.raises(CorruptArtifact, match=r"encoder\.onnx"):
        bundle(encoder, "letters", StoredVersion(VERSION, None, DomainModel()), tmp_path / "other.onnx")
