"""Who gets in where: every route of the application against every kind of key."""

from typing import Any

import pytest
from starlette.routing import Route

from isosim.api.parameters import flat
from isosim.server.app import create_app
from isosim.settings import Settings
from tests.security.conftest import SUBSETS, Keyed
from tests.security.operations import requests

# What each operation needs. A new route has to be written down here.
OPEN = {
    "GET /", "GET /livez", "GET /readyz", "GET /metrics", "GET /health", "GET /ping", "GET /v2/health/live",
    "GET /v2/health/ready", "GET /console/server.json",
}  # fmt: skip
READ = {
    "POST /", "POST /invocations", "POST /similarity", "POST /percentile", "POST /embed", "POST /rerank",
    "POST /v1/rerank", "POST /v2/rerank", "POST /score", "POST /v1/score", "POST /v1/embeddings", "GET /v1/models",
    "POST /v1/embed", "POST /v2/embed",
    "GET /v1/models/{model}", "POST /tokenize", "GET /info", "GET /calibrate",
    "GET /calibrate/{job_id}", "GET /calibrate/{job_id}/events", "GET /domains", "GET /domains/{domain}",
    "GET /domains/{domain}/versions/{version}", "GET /domains/{domain}/threshold",
    "GET /domains/{domain}/thresholds",
    "GET /v2",
    "GET /v2/models/{model}", "GET /v2/models/{model}/ready", "POST /v2/models/{model}/infer",
    "GET /v2/models/{model}/config", "GET /v2/models/{model}/versions/{version}/config",
    "GET /v2/models/{model}/versions/{version}", "GET /v2/models/{model}/versions/{version}/ready",
    "POST /v2/models/{model}/versions/{version}/infer", "GET /matches", "POST /matches", "POST /matches/check",
    "GET /matches/{job_id}", "DELETE /matches/{job_id}", "GET /matches/{job_id}/events", "GET /matches/{job_id}/result",
    "GET /matches/{job_id}/label", "POST /matches/{job_id}/labels", "POST /inspect",
}  # fmt: skip
CALIBRATE = {
    "POST /calibrate", "DELETE /calibrate/{job_id}", "POST /domains/{domain}/labels",
}  # fmt: skip
ADMIN = {
    "PUT /domains/{domain}/champion", "POST /domains/{domain}/rollback", "DELETE /domains/{domain}/versions/{version}",
    "DELETE /domains/{domain}", "PUT /domains/{domain}/thresholds/{name}", "DELETE /domains/{domain}/thresholds/{name}",
    "GET /domains/{domain}/history",
}  # fmt: skip
NEEDS = {
    **dict.fromkeys(OPEN, None), **dict.fromkeys(READ, "read"), **dict.fromkeys(CALIBRATE, "calibrate"),
    **dict.fromkeys(ADMIN, "admin"),
}  # fmt: skip
# Outside the document: pages whose files need no key, and the document itself.
PAGES = {"/openapi.json", "/docs", "/console", "/console/"}
HEADS = {
    "/", "/livez", "/readyz", "/metrics", "/health", "/ping", "/v2/health/live", "/v2/health/ready",
    "/console/server.json",
}  # fmt: skip


def test_every_route_is_in_the_table(document: dict[str, Any]) -> None:
    assert {asked.name for asked in requests(document)} == set(NEEDS)
    hidden = {
        route.path for route in flat(create_app(Settings()).routes)
        if isinstance(route, Route) and not getattr(route, "include_in_schema", False)
    }  # fmt: skip
    assert hidden - HEADS == PAGES


def test_no_key_a_wrong_key_and_a_key_without_the_scope_stay_outside(keyed: Keyed, document: dict[str, Any]) -> None:
    """Every operation × no key, wrong keys, and every set of scopes."""
    checked = 0
    for asked in requests(document):
        scope = NEEDS[asked.name]
        for key in (None, "wrong", *SUBSETS):
            response = keyed.ask(key, asked.method, asked.path, **asked.arguments())
            told = (asked.name, key, response.status_code, response.text[:200])
            checked += 1
            if scope is None:
                assert response.status_code == 200, told
            elif key in (None, "wrong"):
                assert response.status_code == 401, told
                assert response.headers["www-authenticate"] == "Bearer", told
            elif scope not in key.split(","):
                assert response.status_code == 403, told
                assert scope in response.text, told
            else:
                assert response.status_code not in (401, 403), told
            assert response.status_code < 500, told
    assert checked >= 9 * len(NEEDS)


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "read", "Basic read", "Bearer read read", "Token read", "Bearer \xe9",
     "Bearer " + "a" * 8000, "Bearer READ", "Bearer read\t,calibrate"],
)  # fmt: skip
def test_a_header_that_is_no_key_is_none(keyed: Keyed, header: str) -> None:
    response = keyed.server.client.get("/domains", headers={b"authorization": header.encode("latin-1")})
    assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")


@pytest.mark.parametrize(
    "given",
    [
        {"params": {"key": "read", "api_key": "read", "access_token": "read"}}, {"headers": {"x-api-key": "read"}},
        {"headers": {"cookie": "authorization=Bearer read"}},
        {"headers": [("authorization", "Bearer wrong"), ("authorization", "Bearer read")]},
    ],
)  # fmt: skip
def test_a_key_is_taken_from_one_header_alone(keyed: Keyed, given: dict[str, Any]) -> None:
    assert keyed.server.client.get("/domains", **given).status_code == 401


MALFORMED = {"content": b"{", "headers": {"content-type": "application/json"}}
SMALL = {"content": b" " * 20_000, "headers": {"content-type": "application/json"}}
BODIES = ("/similarity", "/embed", "/calibrate", "/v2/models/isosim/infer", "/domains/default/labels",
          "/domains/default/champion", "/domains/default/rollback", "/nowhere")  # fmt: skip


@pytest.mark.parametrize(
    ("key", "method", "path", "given", "status", "error_type", "words"),
    [
        *((None, "POST", path, MALFORMED, 401, "Unauthorized", "key") for path in BODIES),  # which is not read
        (None, "GET", "/domains?limits=5", {}, 401, "Unauthorized", "key"),
        ("wrong", "GET", "/domains?limits=5", {}, 401, "Unauthorized",
         "the API key is not known; ask the server's operator for one: isosim keys new"),
        ("read", "GET", "/domains?limits=5", {}, 422, "Validation", "did you mean limit?"),
        ("read", "POST", "/domains/default/labels", MALFORMED, 403, "Forbidden", "keys new --scopes calibrate"),
        ("read", "PUT", "/domains/default/champion", MALFORMED, 403, "Forbidden", "admin"),
        ("admin", "PUT", "/domains/default/champion", SMALL, 413, "TooLarge", ""),
    ],
)  # fmt: skip
def test_the_key_is_asked_for_first_and_a_refusal_says_how_to_get_one(
    keyed: Keyed, key: str | None, method: str, path: str, given: Any, status: int, error_type: str, words: str
) -> None:
    response = keyed.ask(key, method, path, **{**given})
    body = response.json()
    said = "; ".join([body["error"], body.get("remedy", {}).get("text", "")])
    assert (response.status_code, body["error_type"], words in said) == (status, error_type, True), said


def test_a_body_without_a_length_is_not_read_before_the_key_and_bounded_after_it(keyed: Keyed) -> None:
    for key, status in ((None, 401), ("admin", 413)):
        pieces = (b" " * 5_000 for _ in range(5))
        answer = keyed.ask(key, "PUT", "/domains/default/champion", content=pieces, headers=MALFORMED["headers"])
        assert answer.status_code == status
