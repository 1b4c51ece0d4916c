"""The exported graphs against torch, at shapes the exporter has not seen, for all weights a calibrator can have."""

import copy
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import pytest
import torch

from isosim.arrays import Doubles
from isosim.encoders.onnx_engine import PREFIX, OnnxCalibrator, open_session
from isosim.encoders.store import EncoderArtifact, EncoderStore
from isosim.export import checkpoints, encoder
from isosim.export.graph import check_parity, joined_graph, random_weights
from isosim.fitting.calibrator import Calibrator
from tests.encoders import export

SHAPES = [(1, 1), (1, 3), (2, 30), (7, 5), (19, 12)]  # (B, T); traced was (3, 7)

Feeds = dict[str, npt.NDArray[np.generic]]


@dataclass
class Exported:
    """An encoder in the store and the torch module it was made from."""

    artifact: EncoderArtifact
    module: encoder.Encoder

    @cached_property
    def joined(self) -> ort.InferenceSession:
        return open_session(joined_graph(self.artifact).SerializeToString(), threads=1)

    @cached_property
    def weights(self) -> dict[str, torch.Tensor]:
        """All tensors of the calibrator, random."""
        return random_weights(self.artifact.spec.dim, seed=3)

    @property
    def overrides(self) -> Feeds:
        return {PREFIX + name: tensor.numpy() for name, tensor in self.weights.items()}

    def tokens(self, batch: int, length: int) -> Feeds:
        """Random ids; of several rows all but the first are padded."""
        rng = np.random.default_rng(batch * length)
        mask = np.ones((batch, length), np.int64)
        for row in range(1, batch):
            mask[row, rng.integers(1, length + 1) :] = 0
        ids = np.where(mask == 1, rng.integers(5, 400, mask.shape), self.artifact.spec.pad_token_id)
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        names = {value.name for value in self.joined.get_inputs()}
        return {name: array for name, array in feeds.items() if name in names}

    def run(self, feeds: Feeds) -> tuple[Doubles, Doubles]:
        pooled, latent = self.joined.run(["pooled", "latent"], feeds)
        return pooled, latent

    def torch(self, feeds: Feeds) -> tuple[Doubles, Doubles]:
        """What torch gives for the same tokens and the random weights."""
        with torch.no_grad():
            pooled = self.module(torch.from_numpy(feeds["input_ids"]), torch.from_numpy(feeds["attention_mask"]))
            return pooled.numpy(), Calibrator.from_weights(self.weights)(pooled).numpy()


@pytest.fixture(scope="session", params=["tiny-mean", "tiny-max", pytest.param("minilm", marks=pytest.mark.encoder)])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    source, _, pooling = request.param.partition("-")
    if source == "minilm" or pooling == "mean":
        store = request.getfixturevalue(f"{source}_store")
    else:
        checkpoint = request.getfixturevalue(f"{source}_checkpoint")
        store = export(tmp_path_factory.mktemp(request.param), source, str(checkpoint), layers=2, pooling=pooling)
    artifact = EncoderStore.at(store).find(source)
    folder = "minilm" if source == "minilm" else str(request.getfixturevalue(f"{source}_checkpoint"))
    spec = artifact.spec
    return Exported(artifact, encoder.load(checkpoints.resolve(folder), pooling=spec.pooling, layers=spec.layers))


def test_torch_and_onnx_agree_at_every_shape_with_every_weight_replaced(exported: Exported) -> None:
    for shape in SHAPES:
        feeds = exported.tokens(*shape)
        for output, expected in zip(exported.run(feeds | exported.overrides), exported.torch(feeds), strict=True):
            np.testing.assert_allclose(output, expected, rtol=0, atol=1e-4)


def test_the_calibrators_weights_move_latent_and_not_one_bit_of_pooled(exported: Exported) -> None:
    for shape in SHAPES:
        feeds = exported.tokens(*shape)
        plain, replaced = exported.run(feeds), exported.run(feeds | exported.overrides)
        np.testing.assert_array_equal(plain[0], replaced[0])
        np.testing.assert_array_equal(plain[0], plain[1])  # identity until weights are passed
        assert np.abs(replaced[1] - replaced[0]).max() > 0.1


def test_each_single_weight_is_an_input_of_its_own(exported: Exported) -> None:
    """An optimizer that merges equal tensors or folds one away would leave fewer, or some without effect."""
    names = {value.name for value in exported.joined.get_overridable_initializers()}
    assert names == {PREFIX + name for name in Calibrator(exported.artifact.spec.dim).state_dict()}
    feeds = exported.tokens(2, 5)
    pooled = torch.from_numpy(exported.run(feeds)[0])
    for name in exported.weights:
        others = random_weights(exported.artifact.spec.dim, seed=4)
        mixed = exported.weights | {name: others[name]}
        latent = exported.run(feeds | exported.overrides | {PREFIX + name: others[name].numpy()})[1]
        np.testing.assert_allclose(latent, Calibrator.from_weights(mixed)(pooled).numpy(), rtol=0, atol=1e-4)


def test_weights_bound_once_give_the_same_bits(exported: Exported) -> None:
    feeds = exported.tokens(7, 5)
    binding = exported.joined.io_binding()
    for name, array in (feeds | exported.overrides).items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
    for name in ("pooled", "latent"):
        binding.bind_output(name)
    exported.joined.run_with_iobinding(binding)
    for output, expected in zip(binding.get_outputs(), exported.run(feeds | exported.overrides), strict=True):
        np.testing.assert_array_equal(output.numpy(), expected)


def test_the_graphs_cut_out_give_the_joined_graphs_bits(exported: Exported) -> None:
    weights = {name: tensor.numpy() for name, tensor in exported.weights.items()}
    bound = OnnxCalibrator(exported.artifact.calibrator).bind(weights)
    cut = open_session(exported.artifact.encoder, threads=1)
    for shape in SHAPES:
        feeds = exported.tokens(*shape)
        pooled, latent = exported.run(feeds | exported.overrides)
        np.testing.assert_array_equal(cut.run(["pooled"], feeds)[0], pooled)
        np.testing.assert_array_equal(bound(pooled), latent)


def test_a_graphs_inputs_and_outputs_have_their_names_and_open_sizes(exported: Exported) -> None:
    inputs = {value.name: value.shape for value in exported.joined.get_inputs()}
    assert exported.module.token_types
    assert inputs.keys() == {"input_ids", "attention_mask", "token_type_ids"}
    assert {str(shape) for shape in inputs.values()} == {"['batch', 'length']"}
    outputs = {value.name: value.shape for value in exported.joined.get_outputs()}
    dim = exported.artifact.spec.dim
    assert outputs == {"pooled": ["batch", dim], "latent": ["batch", dim]}


def test_the_parity_check_of_an_export_notices_a_graph_that_is_not_the_encoders(exported: Exported) -> None:
    assert check_parity(exported.module, joined_graph(exported.artifact)) <= 1e-4
    other = copy.deepcopy(exported.module)
    other.model[1].pooling_mode = "mean" if exported.artifact.spec.pooling == "max" else "max"
    with pytest.raises(ArithmeticError, match="differ"):
        check_parity(other, joined_graph(exported.artifact))
