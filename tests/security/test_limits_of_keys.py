"""Rates of keys through HTTP."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.faults.load import metric
from tests.processes import Serve, Server, free_port
from tests.security.conftest import bearer, key_file
from tests.text import sentences

PAIR = {"pairs": [["a boat", "a gate"]]}


@pytest.fixture
def limited(serve: Serve, store: Path, tmp_path: Path) -> Server:
    """Without Redis; two processes that share one: test_redis_tls.py, tests/adapters/redis."""
    keys = key_file(tmp_path, {"slow": "read rate=10/h", "free": "read"})
    return serve(model_store=store, encoder="tiny", api_keys_file=keys)


def ask(server: Server, key: str, path: str = "/similarity", json: Any = PAIR) -> httpx.Response:
    return server.client.post(path, json=json, headers=bearer(key))


def test_a_rate_counts_texts_of_every_route_and_tells_when_to_come_back(limited: Server) -> None:
    openai = {"model": "isosim", "input": "a"}
    admitted = [
        ask(limited, "slow"),  # 2 of 10
        ask(limited, "slow", "/embed", {"inputs": sentences(3)}),  # 5
        ask(limited, "slow", "/tokenize", {"inputs": sentences(2)}),  # 7
        ask(limited, "slow", "/v1/embeddings", openai),  # 8
        limited.client.get("/domains", headers=bearer("slow")),  # 9
    ]
    refused = ask(limited, "slow")
    assert "10 texts an hour" in refused.json()["error"]
    assert 300 < int(refused.headers["retry-after"]) <= 360
    admitted.append(limited.client.get("/domains", headers=bearer("slow")))  # 10
    assert [answer.status_code for answer in admitted] == [200] * 6
    for answer in (refused, limited.client.get("/domains", headers=bearer("slow"))):
        assert (answer.status_code, answer.json()["error_type"]) == (429, "Overloaded")
    assert ask(limited, "slow", "/v1/embeddings", openai).json()["error"]["type"] == "rate_limit_error"
    for _ in range(20):
        assert ask(limited, "free").status_code == 200
    assert metric(limited, "isosim_key_limit_refusals_total") == 3


def test_searches_that_are_more_than_a_rate_pass_when_it_is_full_and_cost_once(
    serve: Serve, store: Path, tmp_path: Path
) -> None:
    keys = key_file(tmp_path, {"slow": "read rate=10/h"})
    server = serve(model_store=store, encoder="tiny", api_keys_file=keys)
    body = {"queries": [{"text": "a boat"}], "gallery": sentences(300)}  # more than are embedded at once
    assert ask(server, "slow", "/matches/check", body).status_code == 200
    refused = ask(server, "slow", "/matches/check", body)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 290 * 360


def test_a_refused_body_costs_a_text_for_each_10_kb(limited: Server) -> None:
    """Also if it is refused for its domain, and on routes that FastAPI parses. A key in debt is refused unread."""
    refused = [
        ask(limited, "slow", json={"pairs": []}),  # 1 of 10
        ask(limited, "slow", json={**PAIR, "domain": "Nowhere"}),  # 2
        ask(limited, "slow", json={"pairs": [], "unknown": "x" * 25_000}),  # 5
        ask(limited, "slow", "/v2/models/isosim/infer", json={"inputs": []}),  # 6
    ]
    assert [response.status_code for response in refused] == [400, 422, 422, 422]
    assert ask(limited, "slow", "/embed", {"inputs": sentences(4)}).status_code == 200  # 10
    assert ask(limited, "slow", json={"pairs": []}).status_code == 400  # in debt now
    unread = ask(limited, "slow", json={"pairs": [], "unknown": "x" * 25_000})
    assert (unread.status_code, unread.json()["error_type"]) == (429, "Overloaded")
    assert ask(limited, "free", json={"pairs": []}).status_code == 400


def test_texts_are_counted_by_name_of_the_key_where_metrics_have_a_port_of_their_own(
    serve: Serve, store: Path, tmp_path: Path
) -> None:
    port = free_port()
    keys = key_file(tmp_path, {"one": "read rate=4/h nightly", "two": "read front", "three": "read"})
    settings: dict[str, Any] = {"model_store": store, "encoder": "tiny", "api_keys_file": keys}
    server = serve(**settings, metrics_port=port)
    assert [ask(server, "one", json={"pairs": PAIR["pairs"] * count}).status_code for count in (2, 3)] == [200, 429]
    for _ in range(2):
        assert ask(server, "two", "/embed", {"inputs": sentences(3)}).status_code == 200
    assert ask(server, "three").status_code == 200
    text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    series = {line for line in text.splitlines() if line.startswith("isosim_key_texts_total{")}
    assert series == {
        'isosim_key_texts_total{key="nightly",result="admitted"} 4.0',
        'isosim_key_texts_total{key="nightly",result="refused"} 6.0',
        'isosim_key_texts_total{key="front",result="admitted"} 6.0',
        'isosim_key_texts_total{key="(unnamed)",result="admitted"} 2.0',
    }
    server.stop()
    quiet = serve(**settings)
    assert ask(quiet, "two").status_code == 200
    assert "isosim_key_texts_total{" not in quiet.client.get("/metrics").text
