"""What one process deletes, no other serves on: replicas on one folder, and on one bucket."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from isosim.encoders.store import EncoderArtifact
from isosim.store.blobs import address_of
from tests.encoders import copy_encoders
from tests.objects import objects  # noqa: F401 - a fixture
from tests.processes import Serve, Server, score, wait_until
from tests.stores import calibrate
from tests.text import sentences

SOON = 2.0  # s in which every replica has seen a change


@pytest.fixture(params=["folder", "bucket"])
def replicas(
    request: pytest.FixtureRequest, serve: Serve, tiny_store: Path, tiny: EncoderArtifact, tmp_path: Path
) -> Iterator[list[Server]]:
    """Two servers on one store: `news@1` to `news@3`, the last one champion, and `films@1`."""
    root = tmp_path / "store" if request.param == "folder" else request.getfixturevalue("objects").bucket()
    copy_encoders(tiny_store, root)
    for domain, method in (("news", "whitening"), ("news", "sn"), ("news", "centring"), ("films", "soft")):
        calibrate(root, tiny, domain, method)
    if request.param == "folder":
        yield [serve(model_store=root, encoder="tiny") for _ in range(2)]
        return
    yield [serve(model_store=address_of(root), encoder="tiny") for _ in range(2)]


def status(server: Server, name: str) -> int:
    return server.client.post("/similarity", json={"pairs": [["a", "b"]], "domain": name}).status_code


def within(seconds: float, met: Callable[[], bool]) -> None:
    began = time.monotonic()
    wait_until(met, seconds=seconds, every=0.02)
    print(f"seen after {time.monotonic() - began:.2f} s")


def test_a_deleted_domain_is_not_found_on_any_replica(replicas: list[Server]) -> None:
    first, second = replicas
    names = ("news", "news@1", "news@3", "news@previous")
    for server in replicas:
        assert [status(server, name) for name in names] == [200] * len(names)
        assert 'domain="news"' in server.client.get("/metrics").text
    assert [first.client.delete("/domains/news").status_code for _ in range(2)] == [204, 204]
    assert [status(first, name) for name in names] == [404] * len(names)
    within(SOON, lambda: [status(second, name) for name in names] == [404] * len(names))
    for server in replicas:
        assert server.client.get("/domains/news").status_code == 404
        assert [one["domain"] for one in server.client.get("/domains").json()["domains"]] == ["default", "films"]
        assert "isosim/news" not in server.client.get("/v1/models").text
        metrics = server.client.get("/metrics").text.splitlines()
        assert not [line for line in metrics if "isosim_domain" in line and 'domain="news"' in line]
        assert status(server, "films") == 200
    assert second.client.delete("/domains/news").status_code == 204
    assert [first.client.delete(f"/domains/{name}").status_code for name in ("default", "typo")] == [409, 404]
    assert first.client.delete("/domains/default").json()["error_type"] == "Conflict"


def test_a_deletion_cancels_the_calibrations_of_its_domain_alone_and_one_posted_later_makes_it_anew(
    serve: Serve, news: Path
) -> None:
    server = serve(model_store=news, encoder="tiny")

    def post(domain: str, key: str, **options: object) -> str:
        body = {"domain": domain, "texts": sentences(300), "method": "sn", **options}
        response = server.client.post("/calibrate", json=body, headers={"idempotency-key": key})
        assert response.status_code == 202, response.text
        job: str = response.json()["job"]
        return job

    jobs = [post("news", "one"), post("news", "two", seed=1), post("films", "three")]
    wait_until(lambda: server.client.get(f"/calibrate/{jobs[0]}").json()["status"] == "running")
    assert server.client.delete("/domains/news").status_code == 204
    states = [server.client.get(f"/calibrate/{job}").json()["status"] for job in jobs[:2]]
    assert states == ["cancelled", "cancelled"]
    assert server.wait_for(jobs[2])["status"] == "succeeded"
    assert not list(news.glob("input/*"))
    assert status(server, "news") == 404
    again = post("news", "one")
    assert again not in jobs
    done = server.wait_for(again)
    assert (done["status"], done["version"], done["promoted"]) == ("succeeded", 3, True), done
    assert score(server, "news").json()["version"] == 3
