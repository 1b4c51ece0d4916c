"""A process that stopped while it held a domain's lock: its domain cannot be changed, and nothing else waits."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from isosim.store.artifacts import locked
from isosim.store.blobs import Folder
from isosim.threads import DEADLINE
from tests.processes import Serve, wait_until


def test_a_held_lock_stops_changes_of_its_domain_alone(serve: Serve, news: Path) -> None:
    server = serve(model_store=news, encoder="tiny")
    asked = {
        "query": "a boat",
        "texts": [f"text number {n}" for n in range(100)],
        "domain": "films",
    }  # more than INLINE
    assert server.client.post("/rerank", json=asked).status_code == 200
    changes = [f"/domains/news/thresholds/t{n}" for n in range(40)]
    with locked(Folder(news)._lock("domains/news.json")), ThreadPoolExecutor(40) as pool:
        waiting = [pool.submit(server.client.put, path, json={"fmr": 0.01}) for path in changes]
        time.sleep(0.5)
        for path in ("/metrics", "/readyz", "/livez"):
            began = time.monotonic()
            assert server.client.get(path).status_code == 200
            assert time.monotonic() - began < 2, path
        began = time.monotonic()
        assert server.client.post("/rerank", json=asked).status_code == 200
        assert time.monotonic() - began < 2
        refused = [answer.result() for answer in waiting]
        assert {(answer.status_code, answer.json()["error_type"]) for answer in refused} == {(503, "Unavailable")}
        assert time.monotonic() - began < 2 * DEADLINE
    assert server.client.get("/domains/news/thresholds").json()["thresholds"] == []  # what was refused is not done
    wait_until(lambda: server.client.put(changes[0], json={"fmr": 0.01}).status_code == 200)
