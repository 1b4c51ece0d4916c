"""Listings of large stores: they hold nothing else up, and the key that asks for them pays."""

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import httpx
import pytest

from isosim.access.grants import ANYBODY, NOBODY
from isosim.api.state import MOST_ASKED, Listings
from isosim.encoders.store import EncoderArtifact
from isosim.errors import Overloaded
from isosim.threads import StoreCalls
from loadtest.servers import multiply
from tests.processes import Serve, Server, wait_until
from tests.security.conftest import bearer, furnish, key_file

COUNT = 3000
LINES = {
    "greedy": "read", "other": "read", "promoter": "admin", "narrow": "read domains=d7,d8,nothing-*",
    "models": "read rate=100/m", "domains": "read rate=20/h", "unknown": "read rate=4/h", "cold": "read rate=2/h",
    "name": "read rate=4/h",
}  # fmt: skip


@pytest.fixture(scope="module")
def large(module_serve: Serve, module_store: Path, tiny: EncoderArtifact) -> Server:
    """3,000 domains and keys without limits, with domains, and with rates."""
    furnish(module_store, tiny, "d0")
    multiply(module_store, COUNT)
    keys = key_file(module_store.parent, LINES)
    return module_serve(model_store=module_store, encoder="tiny", api_keys_file=keys)


def get(server: Server, key: str, path: str) -> httpx.Response:
    return server.client.get(path, headers=bearer(key))


def score(server: Server, key: str, domain: str, pairs: int = 1) -> httpx.Response:
    body = {"pairs": [["a boat", "a gate"]] * pairs, "domain": domain}
    return server.client.post("/similarity", json=body, headers=bearer(key))


def test_scoring_promotion_and_metrics_do_not_wait_for_listings(large: Server) -> None:
    """18 clients of one key list 3,000 domains; the work of others that needs a thread goes on beside them."""
    stop, listed = threading.Event(), list[float]()

    def list_models() -> None:
        while not stop.is_set():
            begun = time.monotonic()
            answer = httpx.get(large.url + "/v1/models", headers=bearer("greedy"), timeout=600)
            listed.append(time.monotonic() - begun)
            assert len(answer.json()["data"]) == 2 * COUNT + 3

    score(large, "other", "default", pairs=60)
    clients = [threading.Thread(target=list_models) for _ in range(18)]
    for client in clients:
        client.start()
    champion = {"version": 2}
    others: dict[str, Callable[[], httpx.Response]] = {
        "score": lambda: score(large, "other", "default", pairs=60),
        "metrics": lambda: get(large, "other", "/metrics"),
        "promotion": lambda: large.client.put("/domains/d1/champion", json=champion, headers=bearer("promoter")),
    }
    waits: dict[str, list[float]] = {name: [] for name in others}
    try:
        wait_until(lambda: listed, 120)
        while len(waits["score"]) < 5:
            for name, ask in others.items():
                begun = time.monotonic()
                assert ask().status_code == 200
                waits[name].append(time.monotonic() - begun)
    finally:
        stop.set()
        for client in clients:
            client.join()
    assert all(median(some) < median(listed) / 8 for some in waits.values()), (waits, sorted(listed))


def test_a_list_of_models_is_the_same_as_ever(large: Server) -> None:
    models = get(large, "greedy", "/v1/models").json()
    assert models == get(large, "greedy", "/v1/models").json()
    names = [card["id"] for card in models["data"]]
    assert (models["object"], names[:4]) == ("list", ["isosim", "isosim/default", "isosim/default:raw", "isosim/d0"])
    card = models["data"][names.index("isosim/d9")]
    assert card == get(large, "greedy", "/v1/models/isosim/d9").json()
    own = [card["id"] for card in get(large, "narrow", "/v1/models").json()["data"]]
    assert own == ["isosim/d7", "isosim/d7:raw", "isosim/d8", "isosim/d8:raw"]


def test_a_listing_is_paid_for_by_its_key(large: Server) -> None:
    """3,000 domains cost as much as 300 texts."""
    assert get(large, "models", "/v1/models").status_code == 200
    refused = get(large, "models", "/v1/models")
    assert refused.status_code == 429
    assert 60 < int(refused.headers["retry-after"]) < 400
    assert get(large, "domains", "/domains?limit=100").status_code == 200  # 11 of 20
    assert get(large, "domains", "/domains?limit=80").status_code == 200  # 9
    assert get(large, "domains", "/domains?limit=1").status_code == 429
    assert get(large, "other", "/domains?limit=1").status_code == 200


def test_an_unknown_name_is_paid_for_before_the_store_is_asked_and_a_known_one_costs_its_texts(large: Server) -> None:
    unknown = [score(large, "unknown", f"nothing-{n}").status_code for n in range(6)]
    assert unknown == [404] * 2 + [429] * 4  # the look-up, and the refused body
    asked = [get(large, "name", "/v1/models/no-model-of-ours").status_code for _ in range(6)]
    assert (asked[0], asked[-1]) == (404, 429)
    assert [score(large, "cold", "d2000").status_code for _ in range(2)] == [200, 429]  # two texts of two


@pytest.mark.anyio
async def test_listings_whose_callers_have_left_do_not_pile_up() -> None:
    """A caller who asks and leaves again and again: each request stays until its turn is over."""
    calls = StoreCalls()
    listings, go_on = Listings(calls), threading.Event()
    asked = [asyncio.create_task(listings(ANYBODY, go_on.wait)) for _ in range(MOST_ASKED)]
    await asyncio.sleep(0)
    for _ in range(2):
        with pytest.raises(Overloaded, match="ask again later"):
            await listings(ANYBODY, go_on.wait)
    assert await listings(NOBODY, int) == 0  # another key's turn
    go_on.set()
    assert all(await asyncio.gather(*asked))
    assert await listings(ANYBODY, int) == 0
    calls.close()
