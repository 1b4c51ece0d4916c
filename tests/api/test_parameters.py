"""Names that no route knows: query parameters and body fields of every route, on a running server."""

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.routing import Route

from isosim.api.parameters import flat, parameters
from isosim.server.app import create_app
from isosim.settings import Settings
from tests.processes import Server

COMPATIBLE = {
    "/", "/invocations", "/embed", "/rerank", "/v1/rerank", "/v2/rerank", "/score", "/v1/score", "/v1/embeddings",
    "/v1/embed", "/v2/embed", "/v2/models/{model:path}/config", "/v2/models/{model:path}/versions/{version}/config",
    "/v1/models", "/v1/models/{model:path}", "/tokenize", "/info", "/health", "/ping", "/v2", "/v2/health/live",
    "/v2/health/ready", "/v2/models/{model:path}", "/v2/models/{model:path}/ready", "/v2/models/{model:path}/infer",
    "/v2/models/{model:path}/versions/{version}", "/v2/models/{model:path}/versions/{version}/ready",
    "/v2/models/{model:path}/versions/{version}/infer",
}  # fmt: skip
EXEMPT = ("/livez", "/readyz", "/metrics", "/console", "/docs", "/openapi.json")
PLACES = {
    "{domain}": "default", "{version}": "1", "{job_id}": "0" * 32, "{model:path}": "isosim", "{name:path}": "main.js",
    "{name}": "start.js",
}  # fmt: skip


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
        ("&".join(f"limti{n}=1" for n in range(17)), "the request has 17 unknown query parameters"),
        ("limit=1&" * 64 + "a=1", "the query has more than 64 parameters"),
        ("limit=x", "limit in the query: Input should be a valid integer"),
    ],
)
def test_a_query_that_cannot_be_understood_is_refused(tiny_server: Server, query: str, said: str) -> None:
    response = tiny_server.client.get(f"/domains?{query}")
    assert response.status_code == 422
    assert response.json()["error"].startswith(said)


def test_compatible_routes_and_probes_ignore_what_others_may_know(tiny_server: Server) -> None:
    foreign = [(method, route) for method, route in ROUTES if (method, route) not in OWN]
    assert {route.path for _, route in foreign} >= COMPATIBLE
    for method, route in foreign:
        _, message = ask(tiny_server, method, route, "qwxz=1&api-version=2024-06-01&verbose")
        assert "unknown query parameter" not in message, route.path


@pytest.mark.parametrize("path", ["/livez", "/console/server.json", "/v1/models", "/info"])
def test_no_route_parses_a_query_of_very_many_parameters(tiny_server: Server, path: str) -> None:
    """FastAPI parses them on the event loop: 30,000 took 0.4 s."""
    response = tiny_server.client.get(f"{path}?{'a&' * 64}")
    assert response.status_code == (400 if path.startswith("/v1/") else 422)


def test_compatible_routes_refuse_our_own_names_where_they_take_none(tiny_server: Server) -> None:
    """If `domain` were ignored, the scores would be those of the default domain."""
    for method, route in ROUTES:
        if route.path in COMPATIBLE and method == "POST":
            status, message = ask(tiny_server, method, route, "domain=letters")
            assert status == (400 if route.path.startswith("/v1") else 422), (route.path, message)
            assert "domain: this route takes no such query parameter" in message
    response = tiny_server.client.post("/v1/embeddings", json={"input": "a", "domain": "x"})
    assert (response.status_code, ": this route takes no such field" in response.text) == (400, True)
