"""Every family of encoders through export and serving, against transformers' own tokenizer and model."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from isosim.arrays import Doubles
from isosim.encoders.onnx_engine import PREFIX, OnnxEncoder, open_session
from isosim.encoders.openvino_engine import OpenVinoEncoder
from isosim.encoders.store import EncoderArtifact, EncoderStore
from isosim.encoders.tokenizer import FastTokenizer
from isosim.errors import InvalidInput
from isosim.export import encoder, precision
from isosim.export.checkpoints import Checkpoint
from isosim.export.graph import joined_graph, random_weights
from isosim.fitting.calibrator import Calibrator
from tests.encoders import export, shifts, vectors
from tests.modelling.encoder.families import FAMILIES, Case, by_hand
from tests.text import sentences

SHAPES = [(1, 1), (1, 3), (2, 30), (7, 5), (5, 48)]  # (B, T); traced was (3, 7)
# One word, a sentence, what is cut at 48 tokens, what the vocabulary lacks, blanks and capitals.
TEXTS = [
    "boat",
    "A farmer paints the garden gate.",
    " ".join(sentences(6)),
    "Zoë's 東京 café 🚣",
    "  The  MAYOR\tsells\n",
]


@dataclass
class Family:
    """A family's checkpoint, and the encoder exported from it."""

    name: str
    case: Case
    folder: Path
    artifact: EncoderArtifact

    @cached_property
    def whole(self) -> Any:
        return AutoModel.from_pretrained(self.folder).eval()

    @cached_property
    def tokenizer(self) -> Any:
        return AutoTokenizer.from_pretrained(self.folder)

    @cached_property
    def serve(self) -> OnnxEncoder:
        return OnnxEncoder(self.artifact.encoder, 1, self.artifact.spec.pad_token_id)

    def states(self, inputs: dict[str, Tensor]) -> tuple[list[Tensor], Any]:
        with torch.no_grad():
            output = self.whole(**inputs, output_hidden_states=True)
        return [*(state[0] for state in output.hidden_states[:-1]), output.last_hidden_state[0]], output

    def transformers(self, text: str) -> Doubles:
        """What the checkpoint gives for a text where isosim has no part in it."""
        inputs = self.tokenizer(text, truncation=True, return_tensors="pt")
        states, output = self.states(inputs)
        pooler = output.pooler_output[0] if self.case.pooling == "pooler" else None
        return by_hand(self.case.pooling, states, pooler).numpy()

    def feeds(self, batch: int, length: int) -> dict[str, npt.NDArray[np.int64]]:
        """Random ids; of several rows all but the first are padded, as far as to one token."""
        rng = np.random.default_rng(batch * length)
        mask = np.ones((batch, length), np.int64)
        for row in range(1, batch):
            mask[row, 1 if row == 1 else rng.integers(1, length + 1) :] = 0
        ids = np.where(mask == 1, rng.integers(5, 400, mask.shape), self.artifact.spec.pad_token_id)
        wanted = self.serve.inputs
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        return {name: array for name, array in feeds.items() if name in wanted}


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Family]:
    name, case = request.param, FAMILIES[request.param]
    folder = case.write(tmp_path_factory.mktemp(name))
    store = export(tmp_path_factory.mktemp(f"{name}-store"), name, str(folder), pooling=case.pooling, prompt=None)
    yield Family(name, case, folder, EncoderStore.at(store).find(name))


def test_a_texts_vector_is_what_transformers_gives(family: Family, record_property: Any) -> None:
    tokens = FastTokenizer(family.artifact.tokenizer, family.artifact.spec.max_length)(TEXTS, "right")
    assert tokens[2].truncated and len(tokens[2].ids) == family.artifact.spec.max_length == 48
    vectors = family.serve([one.ids for one in tokens])  # together: padded
    expected = np.stack([family.transformers(text) for text in TEXTS])
    worst = float(np.abs(vectors - expected).max())
    record_property("worst", worst)
    print(f"largest difference, text to vector, {family.name}: {worst:.1e}")
    assert worst <= 1e-4
    assert np.abs(expected).max() > 0.1  # not so small that all would be near


def test_openvino_gives_the_same_vectors_and_knows_the_vocabulary(family: Family) -> None:
    spec = family.artifact.spec
    on_openvino = OpenVinoEncoder(family.artifact.encoder, 1, spec.pad_token_id)
    tokens = FastTokenizer(family.artifact.tokenizer, spec.max_length)(TEXTS, "right")
    ids = [one.ids for one in tokens]
    np.testing.assert_allclose(on_openvino(ids), family.serve(ids), rtol=0, atol=1e-5)
    assert on_openvino.known_tokens == family.whole.get_input_embeddings().num_embeddings


def test_pooled_and_latent_are_torchs_at_shapes_that_were_not_traced(family: Family) -> None:
    spec = family.artifact.spec
    module = encoder.load(Checkpoint(family.folder, "test"), pooling=family.case.pooling)
    session = open_session(joined_graph(family.artifact).SerializeToString(), 1)
    types = {"token_type_ids"} if family.name in ("bert", "electra", "albert") else set()
    assert family.serve.inputs == {"input_ids", "attention_mask"} | types  # the others have none
    weights = random_weights(spec.dim, seed=3)
    overrides = {PREFIX + name: tensor.numpy() for name, tensor in weights.items()}
    for shape in SHAPES:
        feeds = family.feeds(*shape)
        pooled, latent = session.run(["pooled", "latent"], feeds | overrides)
        with torch.no_grad():
            expected = module(torch.from_numpy(feeds["input_ids"]), torch.from_numpy(feeds["attention_mask"]))
            np.testing.assert_allclose(pooled, expected, rtol=0, atol=1e-4)
            np.testing.assert_allclose(latent, Calibrator.from_weights(weights)(expected), rtol=0, atol=1e-4)


def test_neighbours_and_padding_do_not_move_a_vector(family: Family) -> None:
    """One token beside 48: ModernBERT's windows (4 on either side) are then nothing but padding."""
    rng = np.random.default_rng(0)
    texts = [rng.integers(5, 400, length).tolist() for length in (4, 48, 9, 17, 1)]
    alone = np.concatenate([family.serve([text]) for text in texts])
    np.testing.assert_allclose(family.serve(texts), alone, rtol=0, atol=1e-5)
    np.testing.assert_allclose(family.serve(texts[::-1])[::-1], alone, rtol=0, atol=1e-5)


def test_positions_that_count_tokens_do_not_see_on_which_side_the_padding_is(family: Family) -> None:
    if family.name not in ("gpt2", "modernbert", "qwen2"):
        pytest.skip("its positions count from the left edge, and serving pads on the right")
    right, left = family.feeds(5, 20), family.feeds(5, 20)
    for row, count in enumerate(right["attention_mask"].sum(1)):
        for array in left.values():
            array[row] = np.roll(array[row], -count)  # as many padding tokens come first as came last
    pooled = family.serve.session.run(["pooled"], right)[0]
    tokens = slice(32, None) if family.name == "modernbert" else slice(None)  # cls is a place, not a token
    np.testing.assert_allclose(
        family.serve.session.run(["pooled"], left)[0][:, tokens], pooled[:, tokens], rtol=0, atol=1e-5
    )


def test_the_first_layers_are_the_whole_models(family: Family) -> None:
    """Each keeps its own attention; a norm behind the last layer follows the last kept one."""
    ids = torch.tensor([[7, 17, 35, 44, 99, 5, 350, 61, 88, 123, 8, 9]])
    states, _ = family.states({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    norm = getattr(family.whole, family.case.norm) if family.case.norm else lambda state: state
    for layers in range(family.case.depth):
        if (family.name, layers) == ("modernbert", 0):
            continue  # transformers cannot build it
        cut = encoder.load(Checkpoint(family.folder, "test"), pooling="mean", layers=layers)
        with torch.no_grad():
            vector = cut(ids, torch.ones_like(ids))[0]
            expected = norm(states[layers]).mean(0)
        torch.testing.assert_close(vector, expected, rtol=0, atol=1e-5)


def test_as_many_tokens_fit_as_there_are_positions(family: Family) -> None:
    """RoBERTa's and MPNet's begin behind the padding id: of 66 there is room for 64."""
    loaded = encoder.load(Checkpoint(family.folder, "test"), max_length=64)
    assert encoder.longest(loaded.model[0]) == 64
    fits, more = (torch.full((1, length), 7) for length in (64, 65))
    family.states({"input_ids": fits, "attention_mask": torch.ones_like(fits)})
    if family.name not in ("modernbert", "qwen2"):  # they have angles, which have no end
        with pytest.raises((IndexError, RuntimeError)):
            family.states({"input_ids": more, "attention_mask": torch.ones_like(more)})


def test_a_lower_precision_stays_near_and_no_neighbour_moves_it(family: Family) -> None:
    """MPNet's attention is not one node; GPT-2 has other nodes for its layers, and ALBERT's share their matrices."""
    if family.name in ("bert", "xlm-roberta", "electra"):
        pytest.skip("the graph is BERT's (test_precision.py) or RoBERTa's")
    spec = family.artifact.spec
    ids = [[*one.ids] for one in FastTokenizer(family.artifact.tokenizer, spec.max_length)(sentences(60), "right")]
    graph = onnx.load(family.artifact.encoder)
    fp32 = vectors(graph, ids)
    half = shifts(vectors(precision.half(graph), ids), fp32).mean()
    assert half < 2e-3
    feeds = [family.serve.prepare([row]) for row in ids]
    if family.name in ("albert", "gpt2"):
        with pytest.raises(InvalidInput, match="int8: this encoder's layers"):
            precision.int8(graph, feeds)
        return
    int8 = precision.int8(graph, feeds)
    alone = vectors(int8, ids)
    moved = shifts(alone, fp32).mean()
    print(f"{family.name}: cosines move by {moved:.4f} with int8, by {half:.5f} with fp16")
    assert 0 < moved < 0.02
    assert shifts(vectors(int8, ids, 32), alone).max() < 1e-5
    assert sum(node.op_type == "DequantizeLinear" for node in int8.graph.node) >= 6 * family.case.depth
