"""The exported graphs of the tiny encoder; every family's vectors against torch's are in `test_architectures.py`."""

import copy
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import pytest
import torch

from isosim.encoders.onnx_engine import PREFIX, OnnxCalibrator, open_session
from isosim.encoders.store import EncoderArtifact
from isosim.export import checkpoints, encoder
from isosim.export.graph import check_parity, joined_graph, random_weights
from isosim.fitting.calibrator import Calibrator

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
