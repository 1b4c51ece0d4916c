"""The encoder on OpenVINO: vectors that do not depend on their batch by a bit, and processors that it refuses."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isosim.arrays import Vectors
from isosim.encoders.engines import choose_engine, engine_on
from isosim.encoders.onnx_engine import OnnxEncoder
from isosim.encoders.openvino_engine import OpenVinoEncoder, check_bf16
from isosim.encoders.spec import Engine
from isosim.encoders.store import EncoderArtifact, EncoderStore
from isosim.errors import BackendFailure, Unavailable
from isosim.export.reduced import export_reduced
from isosim.jobs.offline import OfflineEncoder
from tests.processes import Serve
from tests.stores import domains_of, publish
from tests.text import sentences

RNG = np.random.default_rng(0)
IDS = [RNG.integers(5, 100, length).tolist() for length in RNG.integers(1, 60, 120)]
OPEN_AND_RUN = """
import sys, threading
from pathlib import Path
from isosim.encoders.openvino_engine import OpenVinoEncoder
encoder = OpenVinoEncoder(Path(sys.argv[1]), 1, runs=2)
threads = [threading.Thread(target=encoder, args=([[5, 6, 7]] * count,)) for count in (1, 9)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert sys.modules["openvino_telemetry"] is None
"""


def has_bf16() -> bool:
    try:
        check_bf16()
    except Unavailable:
        return False
    return True


@pytest.fixture(scope="module", params=[False, True], ids=["fp32", "bf16"])
def bf16(request: pytest.FixtureRequest) -> bool:
    if request.param and not has_bf16():
        pytest.skip("this processor has no bfloat16")
    return bool(request.param)


@pytest.fixture(scope="module")
def alone(tiny: EncoderArtifact, bf16: bool) -> Vectors:
    encoder = OpenVinoEncoder(tiny.encoder, 1, bf16=bf16)
    return np.concatenate([encoder([row]) for row in IDS])


def test_vectors_are_those_of_onnx_runtime(tiny: EncoderArtifact, alone: Vectors, bf16: bool) -> None:
    expected = OnnxEncoder(tiny.encoder, 1)(IDS)
    distance = np.linalg.norm(alone - expected, axis=1) / np.linalg.norm(expected, axis=1)
    assert distance.max() < (2e-2 if bf16 else 1e-5)
    assert distance.max() > (1e-4 if bf16 else 0)  # bf16 is really used


@pytest.mark.parametrize(("runs", "threads", "threads_alone"), [(1, 1, 0), (2, 1, 2), (1, 2, 0)])
def test_a_vector_does_not_depend_on_its_batch_or_the_threads_by_a_bit(
    tiny: EncoderArtifact, alone: Vectors, bf16: bool, runs: int, threads: int, threads_alone: int
) -> None:
    encoder = OpenVinoEncoder(tiny.encoder, threads, bf16=bf16, runs=runs, threads_alone=threads_alone)
    np.testing.assert_array_equal(encoder(IDS), alone)
    for row, exclusive in zip(range(0, 40, 3), cycle([False, True])):
        copies = encoder.run(encoder.prepare([IDS[row]] * (row + 2)), exclusive=exclusive)
        np.testing.assert_array_equal(copies, np.repeat(alone[row : row + 1], row + 2, axis=0))
    with ThreadPoolExecutor(3) as pool:
        for found in pool.map(encoder, [IDS, IDS[::-1], IDS[::2]]):
            assert set(map(bytes, found)) <= set(map(bytes, alone))


def test_texts_of_other_padded_lengths_are_not_put_into_one_batch(tiny: EncoderArtifact) -> None:
    encoder = OpenVinoEncoder(tiny.encoder, 1)
    assert encoder.prepare([[5] * 5, [5] * 8])["input_ids"].shape == (2, 8)
    with pytest.raises(ValueError, match="different padded lengths"):
        encoder.prepare([[5] * 4, [5] * 5])


UNKNOWN: list[tuple[Any, list[int], str]] = [
    *((OpenVinoEncoder, bad, "the encoder does not know") for bad in ([5, 10**6], [-1, 5], [])),
    (OnnxEncoder, [5, 10**6], "1 × 2 tokens"),
    (OnnxEncoder, [], ""),
]


@pytest.mark.parametrize(("kind", "bad", "said"), UNKNOWN)
def test_a_token_that_the_encoder_does_not_know_is_a_failure(
    tiny: EncoderArtifact, kind: Any, bad: list[int], said: str
) -> None:
    encoder = kind(tiny.encoder, 1)
    with pytest.raises(BackendFailure) as failure:
        encoder([bad])
    assert said in str(failure.value)
    assert encoder([[5, 6]]).shape == (1, 32)


def test_a_processor_without_bfloat16_is_refused_with_a_remedy(tmp_path: Path) -> None:
    for flags in ("fpu avx512f avx512_vnni", None):
        if flags is not None:
            (tmp_path / "cpuinfo").write_text(f"flags\t\t: {flags}\n")
        with pytest.raises(Unavailable, match=r"bfloat16.*use the encoder at fp32 or int8"):
            check_bf16(tmp_path / "cpuinfo" if flags else tmp_path / "absent")
    (tmp_path / "cpuinfo").write_text("flags\t\t: fpu avx512f avx512_bf16\n")
    check_bf16(tmp_path / "cpuinfo")


def test_new_processes_that_start_with_two_runs_at_once_do_not_hang(tiny: EncoderArtifact) -> None:
    for _ in range(3):  # 50 were run once
        subprocess.run([sys.executable, "-c", OPEN_AND_RUN, tiny.encoder], check=True, timeout=60)


@pytest.fixture
def reduced(store: Path) -> EncoderArtifact:
    if not has_bf16():
        pytest.skip("this processor has no bfloat16")
    return export_reduced(store, EncoderStore.at(store).find("tiny"), "bf16", None, lambda _: None)


def test_an_export_at_bf16_is_the_same_graph_with_a_digest_that_names_its_engine(
    tiny: EncoderArtifact, reduced: EncoderArtifact
) -> None:
    assert (reduced.id, reduced.spec.precision) == ("tiny-bf16", "bf16-openvino")
    assert reduced.spec == replace(tiny.spec, precision="bf16-openvino")
    assert reduced.digest != tiny.digest
    assert reduced.probe is not None


@pytest.mark.parametrize(
    ("precision", "wanted", "chosen"),
    [
        ("fp32", None, "onnxruntime"),
        ("fp32", "openvino", "openvino"),
        ("bf16-openvino", None, "openvino"),
        ("bf16-openvino", "openvino", "openvino"),
        ("bf16-openvino", "onnxruntime", None),
        ("bf16-openvino", "cuda", None),
        ("int8-0123", None, "onnxruntime"),
        ("int8-0123", "openvino", None),
        ("fp16-0123", "openvino", None),
    ],
)
def test_an_encoder_runs_on_the_engine_that_defines_it_or_not_at_all(
    tiny: EncoderArtifact, precision: str, wanted: Engine | None, chosen: Engine | None
) -> None:
    artifact = replace(tiny, spec=replace(tiny.spec, precision=precision))
    if chosen is not None:
        assert choose_engine(wanted, artifact) == chosen
        assert engine_on(artifact, gpu=False) == ("openvino" if precision.startswith("bf16") else "onnxruntime")
        return
    with pytest.raises(Unavailable, match="encoder tiny is defined by what"):
        choose_engine(wanted, artifact)


def test_a_server_and_jobs_compute_the_same_bits_at_bf16(
    reduced: EncoderArtifact, tmp_path: Path, serve: Serve
) -> None:
    publish(domains_of(tmp_path / "store"), "default", reduced)
    server = serve(model_store=tmp_path / "store", encoder="tiny-bf16")
    assert server.client.get("/info").json()["model_dtype"] == "bfloat16"
    texts = sentences(40)
    body = {"inputs": texts, "space": "raw", "normalize": False}
    served = np.array(server.client.post("/embed", json=body).json(), np.float32)
    offline = OfflineEncoder(reduced, 1)(texts).vectors
    np.testing.assert_allclose(served, offline, rtol=1e-6)  # JSON rounds
    one_by_one = [server.client.post("/embed", json=body | {"inputs": [text]}).json()[0] for text in texts[:5]]
    np.testing.assert_array_equal(served[:5], np.array(one_by_one, np.float32))
