"""The graphs on ONNX Runtime, and many texts at once."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from isosim.arrays import Weights
from isosim.domains.registry import StoredCalibrations
from isosim.encoders.engines import choose_engine
from isosim.encoders.onnx_engine import OnnxCalibrator, OnnxEncoder
from isosim.encoders.store import EncoderArtifact
from isosim.errors import BackendFailure, CorruptArtifact, EncoderMismatch, NotFound, Unavailable
from isosim.export.graph import random_weights
from isosim.jobs.offline import OfflineEncoder, batches, find_unreadable
from tests.stores import domains_of, publish
from tests.text import sentences


@pytest.fixture(scope="module")
def calibrator(tiny: EncoderArtifact) -> OnnxCalibrator:
    return OnnxCalibrator(tiny.calibrator)


def weights(seed: int = 0) -> Weights:
    return {name: tensor.numpy() for name, tensor in random_weights(32, seed).items()}


@pytest.fixture(scope="module")
def logarithm(tmp_path_factory: pytest.TempPathFactory) -> OnnxEncoder:
    """An encoder whose vector is the logarithm of the sum of its tokens: minus infinity at 0, NaN below."""
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])
    mask = helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "length"])
    pooled = helper.make_tensor_value_info("pooled", TensorProto.FLOAT, ["batch", 1])
    nodes = [
        helper.make_node("Mul", ["input_ids", "attention_mask"], ["kept"]),
        helper.make_node("Cast", ["kept"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Constant", [], ["axis"], value=helper.make_tensor("axis", TensorProto.INT64, [1], [1])),
        helper.make_node("ReduceSum", ["floats", "axis"], ["sum"], keepdims=1),
        helper.make_node("Log", ["sum"], ["pooled"]),
    ]
    graph = helper.make_graph(nodes, "logarithm", [ids, mask], [pooled])
    path = tmp_path_factory.mktemp("graph") / "encoder.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return OnnxEncoder(path, threads=1, pad_token_id=7)


def test_texts_of_different_length_are_padded_behind_the_mask(logarithm: OnnxEncoder) -> None:
    assert logarithm.dim == 1
    np.testing.assert_allclose(np.exp(logarithm([[1, 2, 3], [5], [9, 9]])), [[6], [5], [18]], rtol=1e-6)


@pytest.mark.parametrize("bad", [[0], [-1]], ids=["infinity", "NaN"])
def test_a_vector_with_a_number_that_is_none_is_refused(logarithm: OnnxEncoder, bad: list[int]) -> None:
    with pytest.raises(BackendFailure, match="NaN or infinity"):
        logarithm([[1, 2], bad])
    assert np.isfinite(logarithm([[1, 2]])).all()


def test_latents_of_rows_are_those_of_the_rows_alone(calibrator: OnnxCalibrator) -> None:
    bound = calibrator.bind(weights())
    x = np.random.default_rng(0).standard_normal((9, 32)).astype(np.float32)
    alone = np.concatenate([bound(x[i : i + 1]) for i in range(9)])
    np.testing.assert_allclose(bound(x), alone, rtol=0, atol=1e-5)
    assert bound(x[:0]).shape == (0, 32)
    np.testing.assert_array_equal(bound(np.asfortranarray(x)), bound(x))


def test_two_versions_on_one_session_do_not_mix(calibrator: OnnxCalibrator) -> None:
    x = np.random.default_rng(0).standard_normal((4, 32)).astype(np.float32)
    versions = [calibrator.bind(weights(seed=seed)) for seed in range(3)]
    expected = [version(x) for version in versions]
    assert not np.allclose(expected[0], expected[1], atol=0.1)
    with ThreadPoolExecutor(3) as pool:
        for _ in range(20):
            found = list(pool.map(lambda version: version(x), versions))
            for one, wanted in zip(found, expected, strict=True):
                np.testing.assert_array_equal(one, wanted)


@pytest.mark.parametrize("damage", ["missing", "extra", "shape", "type"])
def test_weights_that_do_not_fit_the_graph_are_refused_by_name(calibrator: OnnxCalibrator, damage: str) -> None:
    wrong = weights()
    match damage:
        case "missing":
            del wrong["mean"]
        case "extra":
            wrong["flow.3.0.scale"] = wrong["mean"]
        case "shape":
            wrong["mean"] = wrong["mean"][:-1]
        case "type":
            wrong["mean"] = wrong["mean"].astype(np.float64)
    with pytest.raises(CorruptArtifact, match=r"flow\.3\.0\.scale" if damage == "extra" else "mean|flow"):
        calibrator.bind(wrong)


def test_cuda_that_does_not_load_is_no_cpu_in_disguise(tiny: EncoderArtifact) -> None:
    """ONNX Runtime drops it, and serves on the processor."""
    with pytest.raises(Unavailable, match="CUDAExecutionProvider does not load"):
        OnnxEncoder(tiny.encoder, threads=1, gpu=True)
    with pytest.raises(Unavailable, match="CUDAExecutionProvider does not load"):
        OnnxCalibrator(tiny.calibrator, gpu=True)


def test_cuda_that_is_installed_and_does_not_load_is_not_chosen_unless_it_is_asked_for(
    tiny: EncoderArtifact, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert choose_engine(None, tiny) == "onnxruntime"
    assert caplog.text == ""
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])
    assert choose_engine(None, tiny) == "onnxruntime"
    assert "computed on the CPU, because CUDAExecutionProvider does not load" in caplog.text
    assert choose_engine("cuda", tiny) == "cuda"


def test_stored_versions_are_served_by_their_own_encoder_alone(
    tmp_path: Path, calibrator: OnnxCalibrator, tiny: EncoderArtifact
) -> None:
    domains = domains_of(tmp_path)
    for made in (weights(), None):
        publish(domains, "news", tiny, weights=made)
    record = domains.read("news")
    mine = StoredCalibrations(domains, tiny.digest, calibrator)
    x = np.ones((1, 32), np.float32)
    flow, identity = (mine.load("news", record.versions[number]) for number in (1, 2))
    np.testing.assert_array_equal(flow.latents(x), calibrator.bind(weights())(x))
    assert (flow.encoder, identity.transform) == (tiny.digest, None)
    theirs = StoredCalibrations(domains, "theirs", calibrator)
    with pytest.raises(EncoderMismatch, match=r"made for encoder tiny.*this server runs theirs"):
        theirs.load("news", record.versions[1])
    domains.remove("news")
    with pytest.raises(NotFound):
        mine.load("news", record.versions[1])


TEXTS = [*sentences(120), "🙂", " ".join(sentences(40))]  # one without a known token, one that is cut


@given(lengths=st.lists(st.integers(1, 300), max_size=60), most=st.integers(1, 600))
def test_batches_hold_every_row_once_and_rise_in_length_within_the_budget(lengths: list[int], most: int) -> None:
    packed = list(batches(lengths, most))
    rows = [row for batch in packed for row in batch]
    assert sorted(rows) == list(range(len(lengths)))
    assert rows == sorted(rows, key=lambda row: (lengths[row], row))
    assert all(len(batch) == 1 or len(batch) * lengths[batch[-1]] <= most for batch in packed)


@given(lengths=st.lists(st.integers(1, 60), max_size=60), most=st.integers(1, 200), unit=st.integers(1, 8))
def test_rows_of_other_rounded_lengths_do_not_share_a_batch(lengths: list[int], most: int, unit: int) -> None:
    packed = list(batches(lengths, most, unit))
    assert sorted(row for batch in packed for row in batch) == list(range(len(lengths)))
    for batch in packed:
        (rounded,) = {-(-lengths[row] // unit) * unit for row in batch}
        assert len(batch) == 1 or len(batch) * rounded <= most


@pytest.mark.parametrize(("batch_tokens", "window"), [(64, 4096), (0, 7), (2048, None), (1, 50)])
def test_neither_batches_nor_windows_change_what_a_text_is(
    tiny: EncoderArtifact, batch_tokens: int, window: int | None
) -> None:
    progress: list[float] = []
    expected = OfflineEncoder(tiny, 1, engine="onnxruntime")(TEXTS)
    encode = OfflineEncoder(tiny, 1, engine="onnxruntime", batch_tokens=batch_tokens, window=window)
    encodings = encode(TEXTS, progress.append)
    scale = float(np.abs(expected.vectors).max())
    np.testing.assert_allclose(encodings.vectors / scale, expected.vectors / scale, rtol=0, atol=1e-6)
    for name in ("tokens", "truncated", "unreadable"):
        np.testing.assert_array_equal(getattr(encodings, name), getattr(expected, name))
    assert progress == sorted(progress)
    assert progress[-1] == 1.0


def test_flags_are_the_tokenizers(tiny: EncoderArtifact) -> None:
    exact = OfflineEncoder(tiny, 1, engine="onnxruntime")
    texts = exact(TEXTS).texts()
    tokens = exact.tokenize([tiny.spec.prompt + text for text in TEXTS], "right")
    assert [(one.tokens, one.truncated, one.unreadable) for one in texts] == [
        (len(one.ids), one.truncated, one.unreadable) for one in tokens
    ]
    assert texts[-1].truncated
    assert find_unreadable(TEXTS, tiny) == {text for text, one in zip(TEXTS, texts, strict=True) if one.unreadable}


def test_no_texts_are_no_vectors(tiny: EncoderArtifact) -> None:
    assert OfflineEncoder(tiny, 1, window=None)([]).vectors.shape == (0, tiny.spec.dim)
