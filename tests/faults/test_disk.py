"""The volume of the model store is full or read-only: scoring goes on, answers are clear, nothing half-made stays."""

import os
import shutil
import signal
from pathlib import Path

import httpx
import pytest

from isosim.store.blobs import LOCKS
from tests.faults.conftest import root
from tests.faults.jobs import LONG, TEXTS, at_work, becomes, held_job, holds, state, whole_versions
from tests.faults.load import Load, metric
from tests.faults.volume import PAGE, Volume
from tests.processes import Serve, score, wait_until
from tests.text import sentences

pytestmark = root


def unavailable(response: httpx.Response, why: str) -> None:
    assert (response.status_code, response.json()["error_type"]) == (503, "Unavailable"), response.text
    assert why in response.json()["error"]
    assert response.headers["retry-after"]


def half_made(store: Path) -> list[Path]:
    """All hidden files and folders but locks: those that writers rename when they end."""
    return [path for path in store.rglob(".*") if path.name != LOCKS]


@pytest.fixture
def with_news(volume: Volume, news_store: Path) -> Volume:
    for kind in ("domains", "versions"):
        shutil.copytree(news_store / kind, volume.store / kind)
    return volume


def test_an_upload_that_does_not_fit_is_refused_and_leaves_nothing(volume: Volume, serve: Serve) -> None:
    server = serve(model_store=volume.store, encoder="tiny")
    large = "\n".join(f"{text} {n}" for n in range(40) for text in sentences(2500))
    before = volume.free
    with Load(server) as load:
        with volume.full(leaving=1_000_000):
            for _ in range(3):
                answer = server.client.post(
                    "/calibrate?domain=large", content=large, headers={"content-type": "text/plain"}
                )
                unavailable(answer, "No space left")
                unavailable(server.client.post("/matches", files={"a": ("a.txt", large)}), "No space left")
                assert half_made(volume.store) == []
        load.answered(10)
    load.nothing_was_lost(10)
    assert volume.free == before
    assert server.client.get("/calibrate").json()["jobs"] == []
    assert server.client.post("/calibrate", json={"domain": "d", "texts": TEXTS}).status_code == 202


def test_a_disk_that_is_full_during_a_fit_delays_the_job(with_news: Volume, serve: Serve) -> None:
    volume = with_news
    server = serve(model_store=volume.store, encoder="tiny")
    before = score(server, "news").content
    held = held_job(server, server, "news", promote="always")
    with volume.full(leaving=4 * PAGE):  # room for its record, but not for a version
        held.let_go()
        wait_until(lambda: "No space left" in "".join(state(server, held.job)["notices"]), 120)
        assert whole_versions(volume.store, "news") == [1, 2]
        assert score(server, "news").content == before
        assert holds(volume.store, TEXTS[7])
        wait_until(lambda: metric(server, "isosim_store_free_ratio") < 0.05)  # IsosimVolumeFull
    done = becomes(server, held.job, "succeeded")
    assert (done["attempt"], done["version"]) == (2, 3)
    assert whole_versions(volume.store, "news") == [1, 2, 3]
    assert half_made(volume.store / "domains") == half_made(volume.store / "versions") == []
    assert not holds(volume.store, TEXTS[7])


def test_a_disk_that_is_full_during_a_match_delays_it(volume: Volume, serve: Serve) -> None:
    server = serve(model_store=volume.store, encoder="tiny")
    posted = server.client.post("/matches", files={"a": ("a.txt", "\n".join(LONG[:3000]))})
    assert posted.status_code == 202, posted.text
    place = f"/matches/{posted.json()['job']}"
    wait_until(lambda: server.client.get(place).json()["best"], 120, 0.01)
    child = at_work(server)
    os.kill(child, signal.SIGSTOP)
    with volume.full(leaving=4 * PAGE):
        os.kill(child, signal.SIGCONT)
        wait_until(lambda: "No space left" in "".join(server.client.get(place).json()["notices"]), 120)
        assert server.client.get(f"{place}/result").status_code == 409
    found = wait_until(lambda: (now := server.client.get(place).json())["finished"] and now, 120)
    assert (found["status"], found["best"]) == ("succeeded", None), found
    assert len(server.client.get(f"{place}/result").content.splitlines()) >= 3000
    assert half_made(volume.store) == [] == [*volume.store.glob("input/*")]


def test_a_read_only_store_is_scored_from_and_refuses_changes_clearly(with_news: Volume, serve: Serve) -> None:
    (with_news.store / "jobs").mkdir()
    server = serve(encoder="tiny", model_store=with_news.store)
    body = {"domain": "news", "texts": TEXTS, "method": "sn", "promote": "always"}
    with Load(server, "news") as load:
        with with_news.read_only():
            unavailable(server.client.post("/calibrate", json=body), "Read-only file system")
            unavailable(server.client.put("/domains/news/champion", json={"version": 1}), "Read-only file system")
            unavailable(server.client.delete("/domains/news"), "Read-only file system")
            assert server.client.get("/domains/news").json()["champion"] == 2
            assert server.client.get("/readyz").status_code == 200
            again = serve(encoder="tiny", model_store=with_news.store)
            before, now = score(server, "news").json(), score(again, "news").json()
            for column in ("cosine", "similarity", "percentile"):  # equal up to rounding: the batches differ
                assert now.pop(column) == pytest.approx(before.pop(column), abs=1e-5)
            assert now == before
            load.answered(20)
        load.answered(10)
    load.nothing_was_lost(10)
    assert server.wait_for(server.client.post("/calibrate", json=body).json()["job"])["version"] == 3
