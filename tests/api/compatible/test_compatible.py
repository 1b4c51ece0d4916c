"""Other services' routes on the tiny encoder: shapes, limits and errors. Their clients are in tests/clients."""

import base64
import struct
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isosim.encoders.store import EncoderArtifact
from tests.processes import Serve, Server
from tests.stores import calibrate
from tests.text import sentences

TEXTS = sentences(4)
INFER = "/v2/models/isosim/infer"


def post(server: Server, path: str, status: int = 200, **body: Any) -> Any:
    response = server.client.post(path, json=body)
    assert response.status_code == status, response.text
    return response.json()


def embedding(server: Server, **body: Any) -> list[Any]:
    return [entry["embedding"] for entry in post(server, "/v1/embeddings", **body)["data"]]


TENSOR = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}
MANY = {"shape": [513], "datatype": "BYTES", "data": ["a"] * 513}
MODELS = ("gpt", "isosim/", "isosim/no-such", "isosim/UPPER", "isosim/default@7", "isosim/default:warm", "")


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        *(("/v1/embeddings", {"input": "a", "model": name}, 404, '"code":"model_not_found"') for name in MODELS),
        ("/v1/embeddings", {"input": "a", "model": "gpt"}, 404, "GET /v1/models lists the models"),
        ("/v1/embeddings", {"input": ["a", 3]}, 400, '"param":"input.1"'),
        ("/v1/embeddings", {"input": [[1], "a"]}, 400, '"param":"input"'),
        ("/v1/embeddings", {"input": [101, 102]}, 400, '"param":"input"'),
        ("/v1/embeddings", {"input": [True]}, 400, '"param":"input.0"'),
        ("/v1/embeddings", {"input": "a", "encoding_format": "int8"}, 400, '"param":"encoding_format"'),
        ("/v1/embeddings", {"input": "a", "model": "isosim:raw", "dimensions": 4096}, 400, '"param":"dimensions"'),
        ("/v1/embeddings", {"input": "a", "model": "isosim:raw", "dimensions": 0}, 400, '"param":"dimensions"'),
        ("/v1/rerank", {"query": "a", "documents": ["", "b"]}, 400, '"param":"documents.0"'),
        ("/v1/score", {"text_1": TEXTS[:2], "text_2": "a"}, 400, '"param":"text_1"'),
        ("/score", {"text_1": TEXTS[:2], "text_2": TEXTS}, 422, "as many"),
        ("/rerank", {"query": "a"}, 422, "one of them"),
        ("/rerank", {"query": "a", "texts": ["a"], "documents": ["a"]}, 422, "one of them"),
        ("/rerank", {"query": "a", "texts": ["a"], "domain": "none", "model": "isosim"}, 422, "domain"),
        ("/tokenize", {"inputs": ["!" * 9_999] * 30}, 422, "characters"),
        (INFER, {"inputs": [TENSOR | {"datatype": "FP32"}]}, 422, "BYTES"),
        (INFER, {"inputs": [TENSOR | {"shape": [-1]}]}, 422, "negative"),
        (INFER, {"inputs": [TENSOR | {"shape": [1, 2]}]}, 422, "shape"),
        (INFER, {"inputs": [TENSOR | {"shape": [9] * 100_000}]}, 422, "[n] or [n, 1]"),
        (INFER, {"inputs": [TENSOR | {"shape": [4096]}]}, 422, "at most 2048"),
        (INFER, {"inputs": [TENSOR | {"name": "x" * 100_000}]}, 422, "text_1 and text_2"),
        (INFER, {"inputs": [TENSOR | {"data": [1]}]}, 422, "texts"),
        (INFER, {"inputs": [TENSOR | {"data": None}]}, 422, "shape"),
        (INFER, {"inputs": [TENSOR | {"parameters": {"binary_data_size": 4}}]}, 422, "0 are left"),
        (INFER, {"inputs": [TENSOR | {"parameters": {"binary_data_size": -1}}]}, 422, "announces"),
        (INFER, {"inputs": [TENSOR, TENSOR]}, 422, "twice"),
        (INFER, {"inputs": [TENSOR], "outputs": [{"name": "embedding"}] * 300}, 422, "twice"),
        ("/v2/embed", {"texts": ["a"], "embedding_types": ["float"] * 3}, 422, "embedding_types"),
        ("/v2/embed", {"texts": ["a"], "output_dimension": 3}, 422, "output_dimension"),
        (INFER, {"inputs": [MANY | {"name": "text_1"}, MANY | {"name": "text_2"}]}, 422, "at most 512"),
    ],
    ids=count(),
)
def test_what_cannot_be_used_is_refused(tiny_server: Server, path: str, body: Any, status: int, words: str) -> None:
    response = tiny_server.client.post(path, json=body)
    assert (response.status_code, words in response.text) == (status, True), response.text


class TestOpenAI:
    def test_base64_is_little_endian_float32(self, tiny_server: Server) -> None:
        plain = embedding(tiny_server, input=TEXTS)
        encoded = embedding(tiny_server, input=TEXTS, encoding_format="base64")
        decoded = [np.frombuffer(base64.b64decode(text), "<f4") for text in encoded]
        np.testing.assert_array_equal(np.array(plain, np.float32), decoded)

    def test_no_route_and_no_json_have_openais_shape_too(self, tiny_server: Server) -> None:
        for response in (
            tiny_server.client.get("/v1/nothing"),
            tiny_server.client.post("/v1/embeddings", content=b"{", headers={"content-type": "application/json"}),
            tiny_server.client.post("/v1/embeddings", content=b"{}", headers={"content-type": "text/plain"}),
        ):
            assert set(response.json()["error"]) == {"message", "type", "param", "code"}


@pytest.fixture(scope="module")
def calibrated(module_serve: Serve, module_store: Path, tiny: EncoderArtifact) -> Server:
    """With the domain `tickets`, whitened."""
    calibrate(module_store, tiny, "tickets", "whitening")
    return module_serve(model_store=module_store, encoder="tiny")


class TestRerank:
    def test_documents_get_coheres_answer_under_all_its_addresses(self, tiny_server: Server) -> None:
        documents: list[Any] = [TEXTS[1], {"text": TEXTS[2]}]
        for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
            answer = post(
                tiny_server, path, query=TEXTS[0], documents=documents, return_documents=True, top_n=0
            )  # vLLM: all
            assert [result["document"]["text"] in TEXTS for result in answer["results"]] == [True, True]
            assert answer["usage"]["total_tokens"] > 0
            assert answer["meta"] == {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}

    def test_the_score_is_the_percentile_and_raw_scores_are_similarities(self, calibrated: Server) -> None:
        pairs = [[TEXTS[0], text] for text in TEXTS[1:]]
        scores = post(calibrated, "/similarity", pairs=pairs, domain="tickets")
        for given, expected in (
            ({"domain": "tickets"}, scores["percentile"]),
            ({"domain": "tickets", "raw_scores": True}, scores["similarity"]),
            ({"model": "isosim/tickets"}, scores["percentile"]),
            ({"model": "isosim/tickets:raw"}, scores["cosine"]),
        ):
            ranks = post(calibrated, "/rerank", query=TEXTS[0], texts=TEXTS[1:], **given)
            found = {rank["index"]: rank["score"] for rank in ranks}
            assert found == pytest.approx(dict(enumerate(expected)), abs=1e-7), given


class TestScore:
    @pytest.mark.parametrize("path", ["/score", "/v1/score"])
    def test_one_against_many_and_many_against_many(self, tiny_server: Server, path: str) -> None:
        pairs = [[TEXTS[0], text] for text in TEXTS]
        expected = post(tiny_server, "/similarity", pairs=pairs)["similarity"]
        for left in (TEXTS[0], [TEXTS[0]], [TEXTS[0]] * 4):
            answer = post(tiny_server, path, text_1=left, text_2=TEXTS)
            assert [entry["score"] for entry in answer["data"]] == pytest.approx(expected, abs=1e-7)
            assert [entry["index"] for entry in answer["data"]] == [0, 1, 2, 3]
        for one, other in (("queries", "documents"), ("queries", "items"), ("data_1", "data_2")):  # vLLM's names
            assert post(tiny_server, path, **dict[str, Any]({one: TEXTS[0], other: TEXTS}))["data"] == answer["data"]


class TestTei:
    def test_tokens_stand_for_the_characters_they_name(self, tiny_server: Server) -> None:
        text = "The Garden gäte, 👍🏿𝒜 猫!" * 10  # other places in UTF-8 and in UTF-16; longer than the encoder reads
        pieces = post(tiny_server, "/tokenize", inputs=[text])[0]
        assert [text[p["start"] : p["stop"]] for p in pieces if not p["special"]] == [
            p["text"] for p in pieces if not p["special"]
        ]
        bare = post(tiny_server, "/tokenize", inputs=text, add_special_tokens=False)[0]
        assert [p["id"] for p in bare] == [p["id"] for p in pieces if not p["special"]]

    def test_null_parameters_are_none(self, tiny_server: Server) -> None:
        inputs = {"source_sentence": TEXTS[0], "sentences": TEXTS}
        assert len(post(tiny_server, "/similarity", inputs=inputs, parameters=None)) == 4

    def test_the_root_leads_browsers_to_the_console_and_embeds(self, tiny_server: Server) -> None:
        found = tiny_server.client.get("/", headers={"accept": "text/html,*/*"}, follow_redirects=True)
        assert found.url.path == "/console"
        assert post(tiny_server, "/", inputs=TEXTS) == post(tiny_server, "/embed", inputs=TEXTS)


def binary(header: bytes, *tensors: bytes) -> dict[str, Any]:
    content = header + b"".join(tensors)
    return {"content": content, "headers": {"inference-header-content-length": str(len(header))}}


def element(text: bytes) -> bytes:
    return struct.pack("<I", len(text)) + text


class TestInferenceProtocol:
    def test_bytes_in_bytes_out(self, tiny_server: Server) -> None:
        content = element("größer".encode())
        header = (
            b'{"inputs":[{"name":"text","shape":[1],"datatype":"BYTES","parameters":{"binary_data_size":%d}}],'
            b'"parameters":{"binary_data_output":true}}' % len(content)
        )
        response = tiny_server.client.post(INFER, **binary(header, content))
        assert response.status_code == 200, response.text
        at = int(response.headers["inference-header-content-length"])
        expected = post(tiny_server, "/embed", inputs="größer")[0]
        np.testing.assert_array_equal(np.frombuffer(response.content[at:], "<f4"), np.float32(expected))

    @pytest.mark.parametrize("content", [b"\x05\x00\x00\x00abc", b"\x00\x00", b"\x02\x00\x00\x00\xff\xfe"])
    def test_broken_elements_are_refused(self, tiny_server: Server, content: bytes) -> None:
        header = b'{"inputs":[{"name":"text","shape":[1],"datatype":"BYTES","parameters":{"binary_data_size":%d}}]}'
        response = tiny_server.client.post(INFER, **binary(header % len(content), content))
        assert response.status_code == 422, response.text

    @pytest.mark.parametrize("length", [b"999", b"-1", b"x", b"\xb2", b"1" * 5000])
    def test_a_header_longer_than_the_body_is_refused(self, tiny_server: Server, length: bytes) -> None:
        headers = {b"inference-header-content-length": length}
        assert tiny_server.client.post(INFER, content=b"{}", headers=headers).status_code == 422

    def test_a_version_of_the_path_is_a_version_of_the_domain(self, tiny_server: Server) -> None:
        assert tiny_server.client.get("/v2/models/isosim/default/versions/0").json()["versions"] == ["0"]
        assert tiny_server.client.get("/v2/models/isosim/default/versions/0/ready").status_code == 200
        unknown = tiny_server.client.get("/v2/models/isosim/default/versions/9/ready")
        assert unknown.status_code == 404
        assert "isosim/default" in unknown.json()["error"]
        for path in ("isosim/default/versions/x", "isosim/default@0/versions/0", "isosim/default/versions/champion"):
            assert tiny_server.client.get(f"/v2/models/{path}").status_code == 404

    def test_what_is_ignored_is_named(self, tiny_server: Server) -> None:
        response = tiny_server.client.post(INFER, json={"inputs": [TENSOR | {"scale": 2}], "whatever": 1})
        assert response.headers["x-isosim-ignored"] == "whatever, inputs.scale"

    def test_a_raw_model_promises_no_percentile(self, tiny_server: Server) -> None:
        described = tiny_server.client.get("/v2/models/isosim/default:raw").json()
        assert [output["name"] for output in described["outputs"]] == ["embedding", "similarity", "cosine"]


PROBES = ["/", "/health", "/ping", "/livez", "/readyz", "/metrics", "/v2/health/live", "/console", "/docs"]


@pytest.mark.parametrize("path", PROBES)
def test_what_probes_ask_for_answers_head_as_it_answers_get(tiny_server: Server, path: str) -> None:
    got, asked = tiny_server.client.get(path), tiny_server.client.head(path)
    assert (asked.status_code, asked.content) == (got.status_code, b"")
    assert asked.headers.get("content-type") == got.headers.get("content-type")
