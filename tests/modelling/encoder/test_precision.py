"""Lower precisions: what they may change."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from isosim.arrays import Vectors
from isosim.encoders.onnx_engine import Feeds, OnnxEncoder
from isosim.encoders.store import EncoderArtifact, EncoderStore
from isosim.encoders.tokenizer import FastTokenizer
from isosim.export import precision
from isosim.export.graph import check_latents, join
from isosim.export.reduced import export_reduced, texts_of
from tests.encoders import shifts, vectors
from tests.text import sentences


@pytest.fixture(scope="module")
def ids(tiny: EncoderArtifact) -> list[list[int]]:
    return [[*tokens.ids] for tokens in FastTokenizer(tiny.tokenizer, 32)(sentences(200), "right")]


@pytest.fixture(scope="module")
def graph(tiny: EncoderArtifact) -> onnx.ModelProto:
    return onnx.load(tiny.encoder)


@pytest.fixture(scope="module")
def feeds(tiny: EncoderArtifact, ids: list[list[int]]) -> list[Feeds]:
    encoder = OnnxEncoder(tiny.encoder, 1)
    return [encoder.prepare([row]) for row in ids]


@pytest.fixture(scope="module")
def fp32(graph: onnx.ModelProto, ids: list[list[int]]) -> Vectors:
    return vectors(graph, ids)


@pytest.fixture(scope="module")
def int8(graph: onnx.ModelProto, feeds: list[Feeds]) -> onnx.ModelProto:
    return precision.int8(graph, feeds)


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_smoothing_changes_no_vector(
    graph: onnx.ModelProto, ids: list[list[int]], feeds: list[Feeds], fp32: Vectors, strength: float
) -> None:
    ranges = precision.channel_ranges(graph, list(precision.weight_products(graph)), feeds[:20])
    smooth = precision.smooth(graph, ranges, strength)
    np.testing.assert_allclose(vectors(smooth, ids), fp32, atol=2e-5)


def test_every_product_with_a_constant_matrix_is_found_and_those_of_one_input_together(graph: onnx.ModelProto) -> None:
    groups = precision.weight_products(graph)
    assert sorted(map(len, groups.values())) == sorted([3, 1, 1, 1] * 4)  # queries with keys and values; 4 layers


def test_int8_is_near_and_no_neighbour_moves_it(int8: onnx.ModelProto, ids: list[list[int]], fp32: Vectors) -> None:
    alone = vectors(int8, ids)
    assert shifts(vectors(int8, ids, 32), alone).max() < 1e-6
    assert 0 < shifts(alone, fp32).mean() < 0.02
    quantized = [node for node in int8.graph.node if node.op_type == "QuantizeLinear"]
    assert len(quantized) == 16  # inputs of products, no results


def test_half_precision_is_near(graph: onnx.ModelProto, ids: list[list[int]], fp32: Vectors) -> None:
    assert shifts(vectors(precision.half(graph), ids), fp32).mean() < 2e-3


def test_the_joined_graph_calibrates_as_torch_does(
    tiny: EncoderArtifact, int8: onnx.ModelProto, graph: onnx.ModelProto, tmp_path: Path
) -> None:
    calibrator = onnx.load(tiny.calibrator)
    for reduced in (int8, precision.half(graph)):
        assert check_latents(join(reduced, calibrator), tiny.spec.dim) < 1e-4


def test_other_ranges_are_another_encoder(graph: onnx.ModelProto, feeds: list[Feeds]) -> None:
    made = [precision.quantize(graph, some) for some in (feeds[:30], feeds[:30], feeds[30:90])]
    one, again, other = map(precision.fingerprint, made)
    assert one == again != other


def test_the_reduced_encoder_lies_beside_the_other_under_its_own_digest(store: Path, tmp_path: Path) -> None:
    fp32 = EncoderStore.at(store).find("tiny")
    text = tmp_path / "text.txt"
    text.write_text("\n".join(sentences(600)))
    made = export_reduced(store, fp32, "int8", text, lambda _: None)
    assert made.digest != fp32.digest
    assert made.spec.precision.startswith("int8-")
    assert EncoderStore.at(store).find("tiny-int8").digest == made.digest
    near = OnnxEncoder(made.encoder, 1)([[2, 9, 8, 3]])
    np.testing.assert_allclose(near, OnnxEncoder(fp32.encoder, 1)([[2, 9, 8, 3]]), atol=0.2)


def test_text_to_take_ranges_from_comes_with_python() -> None:
    texts = texts_of(None)
    assert len(texts) == len(set(texts)) == precision.SENTENCES
    assert all(len(sentence) > 20 for sentence in texts)
