"""Names that no route knows: query parameters and body fields of every route, on a running server."""

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.routing import Route

from isosim.api.parameters import OURS, flat, nearest, own_fields, parameters
from isosim.server.app import create_app
from isosim.settings import Settings
from tests.processes import Server
from tests.text import sentences

COMPATIBLE = {
    "/", "/embed", "/rerank", "/v1/rerank", "/v2/rerank", "/score", "/v1/score", "/v1/embeddings", "/v1/models",
    "/v1/models/{model:path}", "/tokenize", "/info", "/health", "/ping", "/v2", "/v2/health/live",
    "/v2/health/ready", "/v2/models/{model:path}", "/v2/models/{model:path}/ready", "/v2/models/{model:path}/infer",
    "/v2/models/{model:path}/versions/{version}", "/v2/models/{model:path}/versions/{version}/ready",
    "/v2/models/{model:path}/versions/{version}/infer",
}  # fmt: skip
EXEMPT = ("/livez", "/readyz", "/metrics", "/console", "/docs", "/openapi.json")
PLACES = {
    "{domain}": "default", "{version}": "1", "{job_id}": "0" * 32, "{model:path}": "isosim", "{name:path}": "main.js",
    "{name}": "start.js",
}  # fmt: skip
# Fields and parameters of TEI, OpenAI, Cohere, Jina, Voyage, vLLM, Infinity and the Open Inference Protocol.
FOREIGN = """
activation additional_data batch_size binary_data collection device dimension dimensions doc documents
embedding_type encoding_format encoding_formats id input input_type inputs instruction instructions
late_chunking max_chunks_per_doc max_tokens_per_doc metadata mm_processor_kwargs modality model name
namespace normalize normalized options outputs output_dimension output_dtype page pooling priority prompt
prompt_name query rank_fields raw_scores region return_documents return_text sentence_embedding
source_sentence sparse stream task template text text_1 text_2 texts tokens top_k top_n truncate
truncate_prompt_tokens truncation truncation_direction type use_activation use_cache user version
wait_for_model
""".split()  # noqa: SIM905 - a list of 70 quoted words is no better


def every_route() -> Iterator[tuple[str, Route]]:
    for route in flat(create_app(Settings()).routes):
        if isinstance(route, Route):
            for method in sorted(route.methods or ()):
                yield method, route


ROUTES = list(every_route())
OWN = [
    (method, route) for method, route in ROUTES if route.path not in COMPATIBLE and not route.path.startswith(EXEMPT)
]


def ask(server: Server, method: str, route: Route, query: str, **arguments: Any) -> Any:
    path = route.path
    for place, value in PLACES.items():
        path = path.replace(place, value)
    assert "{" not in path, f"{path}: what should stand here?"
    response = server.client.request(method, f"{path}?{query}", **arguments)
    message = response.text if method != "HEAD" else ""
    return response.status_code, message


@pytest.mark.parametrize(("method", "route"), OWN, ids=lambda part: getattr(part, "path", part))
def test_our_own_routes_refuse_a_query_parameter_they_do_not_know(
    tiny_server: Server, method: str, route: Route
) -> None:
    status, message = ask(tiny_server, method, route, "qwxz=1")
    assert status == 422
    assert "qwxz: unknown query parameter" in message
    for name in parameters(route):
        status, message = ask(tiny_server, method, route, f"{name[:-1]}=1")
        assert status == 422
        assert f"did you mean {name}?" in message, message


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("limit=2&limit=3", "limit: given 2 times in the query; give it once"),
        ("=x", "(no name): unknown query parameter"),
        ("after=" + "a" * 8192, "the query has 8,198 bytes, at most 8,192 are read"),
    ],
)
def test_a_query_whose_meaning_is_open_is_refused(tiny_server: Server, query: str, said: str) -> None:
    response = tiny_server.client.get(f"/domains?{query}")
    assert response.status_code == 422
    assert said in response.json()["error"]


def test_compatible_routes_and_probes_ignore_what_others_may_know(tiny_server: Server) -> None:
    foreign = [(method, route) for method, route in ROUTES if (method, route) not in OWN]
    assert {route.path for _, route in foreign} >= COMPATIBLE
    for method, route in foreign:
        _, message = ask(tiny_server, method, route, "qwxz=1&api-version=2024-06-01&verbose")
        assert "unknown query parameter" not in message, route.path


def test_compatible_routes_refuse_a_parameter_close_to_ours(tiny_server: Server) -> None:
    for method, route in ROUTES:
        if route.path in COMPATIBLE and method != "HEAD":
            for name in ("domian", "Domain", "domain", "spcae"):
                status, message = ask(tiny_server, method, route, f"{name}=letters")
                assert status == (400 if route.path.startswith("/v1") else 422), (route.path, message)
                assert f"{name}: unknown query parameter" in message


def test_every_documented_operation_has_known_names() -> None:
    """A route that reads its body itself must not slip through: its model is found as well."""
    reading = {route.path for method, route in OWN if method in ("POST", "PUT") and own_fields(route)}
    assert reading == {
        "/similarity", "/percentile", "/calibrate", "/domains/{domain}/labels", "/domains/{domain}/champion",
        "/domains/{domain}/rollback", "/domains/{domain}/migration",
        "/domains/{domain}/thresholds/{name}",
    }  # fmt: skip


def test_a_misspelt_calibration_is_refused_and_not_promoted(tiny_server: Server) -> None:
    text, kind = "\n".join(sentences(300)).encode(), {"content-type": "text/plain"}
    jobs = len(tiny_server.client.get("/calibrate").json()["jobs"])
    for query, meant in (("metod=flow&promote=never", "method"), ("method=flow&promot=never", "promote")):
        answer = tiny_server.client.post(f"/calibrate?domain=d&{query}", content=text, headers=kind)
        assert (answer.status_code, answer.json()["error_type"]) == (422, "Validation")
        assert f"did you mean {meant}?" in answer.json()["error"]
    body = {"domain": "d", "texts": sentences(300)}
    for query in ("method=flow", "promote=never"):
        answer = tiny_server.client.post(f"/calibrate?{query}", json=body)
        assert answer.status_code == 422
        assert "belongs in the JSON body" in answer.json()["error"]
    assert "JSON body" in tiny_server.client.post("/calibrate?labels=1", json=body).json()["error"]
    assert len(tiny_server.client.get("/calibrate").json()["jobs"]) == jobs


@pytest.mark.parametrize(
    ("path", "body", "meant"),
    [
        ("/similarity", {"pairs": [["a", "b"]], "domian": "x"}, "domian: unknown field; did you mean domain?"),
        ("/similarity", {"pars": [["a", "b"]]}, "did you mean pairs?"),
        ("/similarity", {"pairs": [["a", "b"]], "qwxz": 1}, "known are pairs, domain, detail"),
        ("/calibrate", {"domain": "d", "texts": ["a"], "metod": "flow"}, "did you mean method?"),
        ("/calibrate", {"domain": "d", "texts": ["a"], "text": ["a"]}, "did you mean texts?"),
        ("/domains/default/labels", {"label": []}, "did you mean labels?"),
        ("/domains/default/migration", {"witout": []}, "did you mean without?"),
        ("/embed", {"inputs": "a", "domian": "x"}, "did you mean the field domain of the body?"),
        ("/embed", {"inputs": "a", "spaces": "raw"}, "did you mean the field space of the body?"),
        ("/rerank", {"query": "a", "texts": ["a"], "domian": "x"}, "did you mean the field domain of the body?"),
        ("/rerank", {"query": "a", "texts": ["a"], "galery": 9}, "did you mean the field gallery of the body?"),
        ("/rerank", {"query": "a", "texts": ["a"], "treshold": "x"}, "no threshold; POST /similarity takes the name"),
        ("/embed", {"inputs": "a", "gallery": 9}, "this route takes no gallery; POST /rerank takes one"),
        (
            "/similarity",
            {"inputs": {"source_sentence": "a", "sentences": ["b"]}, "domain": "x"},
            "did you mean the field parameters.domain of the body?",
        ),
        (
            "/similarity",
            {"inputs": {"source_sentence": "a", "sentences": ["b"]}, "parameters": {"domian": "x"}},
            "parameters.domian: unknown field; did you mean the field parameters.domain",
        ),
        ("/score", {"text_1": "a", "text_2": "b", "domain": "x"}, "name the domain in the field model"),
        ("/v1/embeddings", {"input": "a", "domain": "x"}, "name the domain in the field model"),
    ],
)  # fmt: skip
def test_an_unknown_field_is_told_the_nearest_known_one(
    tiny_server: Server, path: str, body: dict[str, Any], meant: str
) -> None:
    response = tiny_server.client.post(path, json=body)
    assert response.status_code == (400 if path.startswith("/v1") else 422)
    assert meant in response.text
    if path.startswith("/v1"):
        assert response.json()["error"]["param"] == "domain"


def test_no_field_of_another_service_is_close_to_ours() -> None:
    assert {name: near for name in FOREIGN if (near := nearest(name, OURS, 0.75)) is not None} == {}
