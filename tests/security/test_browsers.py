"""What browsers are told, and what they may send: headers on every answer, origins, other sites, rebound names."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from isosim.errors import Unavailable
from isosim.settings import Settings, check_exposure
from tests.processes import Serve, Server
from tests.security.conftest import bearer, key_file
from tests.security.operations import requests

BODY = {"pairs": [["a boat", "a gate"]]}
ORIGIN = "https://app.example.com"


def guarded(response: httpx.Response) -> None:
    headers = response.headers
    assert headers.get_list("x-content-type-options") == ["nosniff"], response.request.url
    assert headers.get_list("referrer-policy") == ["no-referrer"]
    (policy,) = headers.get_list("content-security-policy")
    assert policy.startswith("default-src 'none'")
    assert "frame-ancestors 'none'" in policy
    assert "server" not in headers
    assert "x-powered-by" not in headers
    assert headers["x-request-id"]


def test_every_answer_is_guarded_and_no_cache_keeps_it_good_or_bad(
    tiny_server: Server, document: dict[str, Any]
) -> None:
    client = tiny_server.client
    for asked in requests(document):
        guarded(client.request(asked.method, asked.path, **asked.arguments()))
    for path in ("/console", "/console/main.js", "/docs", "/console/docs.js", "/openapi.json", "/nowhere"):
        guarded(client.get(path))
    for path in ("/domains", "/metrics", "/calibrate", "/nowhere", "/console/server.json"):
        assert client.get(path).headers.get_list("cache-control") == ["no-store"], path
    for path, body in (("/similarity", BODY), ("/embed", {"inputs": "a"})):
        assert client.post(path, json=body).headers.get_list("cache-control") == ["no-store"], path
    assert client.get("/console").headers.get_list("cache-control") == ["no-cache"]  # asked for again, by its tag
    guarded(client.post("/similarity", content=b"x" * 2_000_001, headers={"content-type": "application/json"}))


PREFLIGHT = {
    "origin": ORIGIN, "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,x-stainless-lang,x-fern-sdk-name",
}  # fmt: skip


def test_other_origins_may_not_read_unless_they_are_named(tiny_server: Server, serve: Serve, store: Path) -> None:
    keys = key_file(store.parent, {"k": "read"})
    given = {"model_store": store, "encoder": "tiny", "api_keys_file": keys, "cors_origins": f'["{ORIGIN}"]'}
    closed, opened = tiny_server.client, serve(**given).client
    assert "access-control-allow-origin" not in closed.options("/similarity", headers=PREFLIGHT).headers
    assert "access-control-allow-origin" not in closed.get("/domains", headers={"origin": ORIGIN}).headers
    preflight = opened.options("/similarity", headers=PREFLIGHT)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == ORIGIN
    assert preflight.headers["access-control-allow-headers"] == PREFLIGHT["access-control-request-headers"]
    assert "access-control-allow-credentials" not in preflight.headers
    answers = [
        opened.post("/similarity", json=BODY, headers=bearer("k") | {"origin": ORIGIN}),
        opened.post("/similarity", json=BODY, headers={"origin": ORIGIN}),  # 401: the page can read why
        opened.post("/similarity", content=b"x" * 2_000_001, headers={"origin": ORIGIN}),  # 413, of the outer layer
    ]
    assert [answer.status_code for answer in answers] == [200, 401, 413]
    for answer in answers:
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
    for other in ("https://app.example.com.evil.example", "http://app.example.com", "null", "https://evil.example"):
        assert "access-control-allow-origin" not in opened.get("/livez", headers={"origin": other}).headers
        assert opened.options("/similarity", headers=PREFLIGHT | {"origin": other}).status_code == 400


@pytest.mark.parametrize("origin", ["*", "https://*.example.com", "app.example.com", "https://a.example/", "null", ""])
def test_only_exact_origins_can_be_named(origin: str) -> None:
    with pytest.raises(ValueError, match="not an origin"):
        Settings(cors_origins=(origin,))


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ({"sec-fetch-site": "cross-site", "origin": "https://evil.example"}, 403),
        ({"origin": "https://evil.example"}, 403), ({"origin": "null"}, 403),
        ({"origin": "http://localhost:3000"}, 403), ({"origin": "http://localhost"}, 403),
        ({"origin": "http://localhost:3000", "sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"origin": "http://localhost:8000"}, 200), ({"origin": "http://LOCALHOST:8000"}, 200), ({}, 200),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"origin": "https://isosim", "host": "isosim"}, 200),
        ({"origin": "https://isosim", "host": "isosim:443"}, 200),
        ({"origin": "http://isosim", "host": "isosim:80"}, 200), ({"origin": "http://[::1]:80", "host": "[::1]"}, 200),
        ({"origin": "https://isosim.example", "sec-fetch-site": "same-origin"}, 200),  # a proxy wrote its own host
        ({"origin": "http://10.0.0.6:8000", "host": "10.0.0.5:8000"}, 403), ({"origin": "null", "host": "null"}, 403),
    ],
)  # fmt: skip
def test_a_page_is_known_by_its_origin_where_the_browser_does_not_name_its_site(
    tiny_server: Server, sent: dict[str, str], status: int
) -> None:
    """Browsers leave Sec-Fetch-Site out where plain http goes to another machine than their own."""
    headers = {"host": "localhost:8000", "content-type": "text/plain"} | sent
    asked = ("POST", "/similarity", 415), ("POST", "/calibrate", 422), ("DELETE", "/domains/nope/versions/1", 404)
    for method, path, otherwise in asked:
        response = tiny_server.client.request(method, path, content=b"{", headers=headers)
        assert response.status_code == (403 if status == 403 else otherwise), response.text
    assert tiny_server.client.get("/domains", headers=headers).status_code == 200  # which the page cannot read


def test_a_page_that_is_allowed_can(serve: Serve, store: Path) -> None:
    server = serve(model_store=store, encoder="tiny", cors_origins=f'["{ORIGIN}"]')
    for site in ({"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {}):
        for origin, status in ((ORIGIN, 200), ("https://evil.example", 403)):
            headers = {"origin": origin} | site
            assert server.client.post("/similarity", json=BODY, headers=headers).status_code == status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200), ("localhost", 200), ("LOCALHOST:80", 200), ("[::1]:8000", 200), ("10.0.0.7", 200),
        ("isosim", 200), ("isosim:8000", 200), ("tools.localhost:8000", 200), ("", 200),
        ("host.docker.internal:8000", 200), ("nas.local", 200), ("isosim.home.arpa.", 200), ("isosim.test", 200),
        ("internal.evil.example", 403), ("evilinternal.example", 403), ("x.local.evil.example", 403),
        ("isosim.scoring.svc", 403), ("nas.lan", 403),  # reserved by nobody
        ("evil.example", 403), ("evil.example:8000", 403), ("127.0.0.1.evil.example", 403), ("evil.example.", 403),
        ("localhost.evil.example:8000", 403), ("1.2.3.4.5", 403),
    ],
)  # fmt: skip
def test_a_name_that_was_pointed_at_this_machine_is_not_answered(tiny_server: Server, host: str, status: int) -> None:
    """DNS rebinding: for the browser the page and this server are one site, for us it is a stranger's name."""
    for method, path in (("GET", "/domains"), ("POST", "/similarity")):
        response = tiny_server.client.request(method, path, json=BODY, headers={"host": host})
        assert response.status_code == status, response.text


def test_behind_a_proxy_that_asks_any_name_is_answered_once_that_is_said(serve: Serve, store: Path) -> None:
    server = serve(model_store=store, encoder="tiny", allow_anonymous=True)
    assert server.client.get("/domains", headers={"host": "isosim.example.com"}).status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "isosim.internal", ""])  # noqa: S104
def test_without_keys_only_loopback_is_served(host: str, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="API keys"):
        check_exposure(Settings(host=host))
    check_exposure(Settings(host=host, allow_anonymous=True))
    check_exposure(Settings(host=host, api_keys_file=tmp_path / "keys"))
    for loopback in ("127.0.0.1", "localhost", "::1"):
        check_exposure(Settings(host=loopback))
