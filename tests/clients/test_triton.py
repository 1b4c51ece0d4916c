"""Triton's HTTP client speaking the Open Inference Protocol, binary tensors by default."""

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from .conftest import TEXTS


@pytest.fixture(scope="module")
def client(url: str) -> triton.InferenceServerClient:
    return triton.InferenceServerClient(url.removeprefix("http://"))


@pytest.fixture  # one a test: the client writes into it
def headers(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def tensor(name: str, texts: list[str], *, binary: bool = True) -> triton.InferInput:
    found = triton.InferInput(name, [len(texts)], "BYTES")
    found.set_data_from_numpy(np.array([text.encode() for text in texts], dtype=object), binary_data=binary)
    return found


def test_probes_need_no_key(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()


def test_a_model_is_ready_and_described(client: triton.InferenceServerClient, headers: dict[str, str]) -> None:
    assert client.is_model_ready("isosim/default", headers=headers)
    assert not client.is_model_ready("nothing", headers=headers)
    described = client.get_model_metadata("isosim/default", headers=headers)
    assert described["outputs"][0] == {"name": "embedding", "datatype": "FP32", "shape": [-1, 384]}
    config = client.get_model_config("isosim/default", headers=headers)
    assert config["input"][0] == {"name": "text", "data_type": "TYPE_STRING", "dims": [-1]}
    assert config["output"][0] == {"name": "embedding", "data_type": "TYPE_FP32", "dims": [-1, 384]}
    assert client.get_server_metadata(headers=headers)["name"] == "isosim"


@pytest.mark.parametrize("binary", [True, False])
def test_texts_give_the_vectors_of_embed(
    client: triton.InferenceServerClient, headers: dict[str, str], vectors: list[list[float]], binary: bool
) -> None:
    outputs = [triton.InferRequestedOutput("embedding", binary_data=binary)]
    inputs = [tensor("text", TEXTS, binary=binary)]
    answer = client.infer("isosim", inputs, outputs=outputs, headers=headers, request_id="7")
    np.testing.assert_allclose(answer.as_numpy("embedding"), vectors, rtol=1e-6)
    assert answer.get_response()["id"] == "7"


def test_pairs_of_texts_give_scores(
    client: triton.InferenceServerClient, headers: dict[str, str], similarities: list[float]
) -> None:
    inputs = [tensor("text_1", [TEXTS[0]] * 3), tensor("text_2", TEXTS[1:])]
    answer = client.infer("isosim/default", inputs, model_version="1", headers=headers)
    np.testing.assert_allclose(answer.as_numpy("similarity"), similarities, rtol=1e-6)
    percentiles = answer.as_numpy("percentile")
    assert percentiles.dtype == np.float64
    assert ((percentiles >= 0) & (percentiles <= 1)).all()


def test_errors_reach_the_caller(client: triton.InferenceServerClient, headers: dict[str, str]) -> None:
    with pytest.raises(InferenceServerException, match="no model 'nothing'"):
        client.infer("nothing", [tensor("text", TEXTS)], headers=headers)
    with pytest.raises(InferenceServerException, match="text_1 and text_2"):
        client.infer("isosim", [tensor("texts", TEXTS)], headers=headers)
