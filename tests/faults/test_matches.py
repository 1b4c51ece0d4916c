"""A match goes on when its worker dies, and two servers on one store without Redis are one service."""

import os
import signal
from pathlib import Path

from tests.faults.jobs import at_work
from tests.processes import Serve, wait_until
from tests.text import sentences

LONG = [f"{text} {n}" for n in range(10) for text in sentences(500)]
ENDED = ("succeeded", "failed", "cancelled")


def test_a_killed_process_of_a_match_is_followed_by_another(serve: Serve, store: Path) -> None:
    server = serve(model_store=store, encoder="tiny")
    posted = server.client.post("/matches", files={"a": ("a.txt", "\n".join(LONG[:3000]))})
    assert posted.status_code == 202, posted.text
    place = f"/matches/{posted.json()['job']}"
    best = wait_until(lambda: server.client.get(place).json()["best"], 120, 0.01)  # while the rest is computed
    assert all(LONG[pair["row_a"] - 1] == pair["a"] and LONG[pair["row_b"] - 1] == pair["b"] for pair in best)
    os.kill(at_work(server), signal.SIGKILL)
    found = wait_until(lambda: (state := server.client.get(place).json())["status"] in ENDED and state, 300)
    assert (found["status"], found["best"]) == ("succeeded", None), found
    assert not [*store.glob("matches/*/*/best")]
    assert "attempt 1: the job's process was killed" in found["notices"][0]
    assert len(server.client.get(f"{place}/result").content.splitlines()) >= 3000  # more where pairs are equal
    assert not [*store.glob("input/*"), *store.glob("open/*/*")]


def test_two_servers_without_redis_share_matches(serve: Serve, store: Path) -> None:
    one, other = (serve(model_store=store, encoder="tiny", local_worker=local) for local in ("true", "false"))
    header, body = {"idempotency-key": "mine"}, {"a": LONG[:300]}
    jobs = {server.client.post("/matches", json=body, headers=header).json()["job"] for server in (other, one, other)}
    (job,) = jobs
    wait_until(lambda: other.client.get(f"/matches/{job}").json()["status"] == "succeeded", 300)
    pairs = [server.client.get(f"/matches/{job}/result").content for server in (one, other)]
    assert pairs[0] == pairs[1]
    labels = {"labels": [{"pair": 0, "label": 1}]}
    assert other.client.post(f"/matches/{job}/labels", json=labels).json()["judged"] == 1
    assert one.client.get(f"/matches/{job}").json()["judged"] == 1
    assert one.client.delete(f"/matches/{job}").status_code == 204
    assert other.client.get(f"/matches/{job}").status_code == 404
