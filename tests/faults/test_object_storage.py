"""A store in object storage: replicas see each other's promotions, and an outage stops changes alone."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from isosim.encoders.store import EncoderArtifact
from isosim.store.blobs import address_of
from tests.encoders import copy_encoders
from tests.faults.load import Load
from tests.objects import Objects, objects  # noqa: F401 - a fixture
from tests.processes import Process, Server, command, score, serve_with, wait_until
from tests.stores import calibrate


@pytest.fixture(scope="module")
def bucket(objects: Objects, tiny_store: Path, tiny: EncoderArtifact) -> Path:  # noqa: F811
    """The tiny encoder; `news@1` whitening and `news@2` (champion) sn, `films@1` soft."""
    root = objects.bucket()
    copy_encoders(tiny_store, root)
    for domain, method in (("news", "whitening"), ("news", "sn"), ("films", "soft")):
        calibrate(root, tiny, domain, method)
    return root


@pytest.fixture(scope="module")
def replicas(bucket: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """Two servers on one bucket."""
    running: list[Process] = []
    folders = [tmp_path_factory.mktemp("replica") for _ in range(2)]
    given: dict[str, Any] = {"model_store": address_of(bucket), "encoder": "tiny"}
    yield [serve_with(folder, running, **given) for folder in folders]
    for process in running:
        process.kill()


def test_a_replica_answers_with_a_new_champion_within_two_seconds(replicas: list[Server]) -> None:
    first, second = replicas
    for version in (1, 2, 1, 2):
        assert [score(server, "news").json()["version"] for server in replicas] == [3 - version] * 2
        promoted = first.client.put("/domains/news/champion", json={"version": version})
        assert promoted.json()["champion"] == version, promoted.text
        wait_until(lambda: score(second, "news").json()["version"] == version, seconds=2)  # noqa: B023


def test_object_storage_that_hangs_stops_changes_alone_and_is_said_once(
    objects: Objects,  # noqa: F811
    replicas: list[Server],
) -> None:
    server, other = replicas
    score(server, "films")
    before = score(server, "news").json()["version"]
    large = {"pairs": [[f"a {number}", f"b {number}"] for number in range(200)], "domain": "news"}  # scored in threads
    cold = [{"pairs": [["a", "b"]], "domain": f"cold-{number}"} for number in range(10)]
    with ThreadPoolExecutor(len(cold) + 40) as pool, Load(server, "news") as load:
        load.answered(10)
        objects.hang()
        try:
            waiting = [pool.submit(server.client.post, "/similarity", json=body) for body in cold]
            time.sleep(0.5)
            polls = [pool.submit(server.client.get, "/domains/news/thresholds") for _ in range(40)]  # more than CALLS
            for path in ("/metrics", "/readyz", "/livez"):
                began = time.monotonic()
                assert server.client.get(path).status_code == 200
                assert time.monotonic() - began < 2, path
            began = time.monotonic()
            assert server.client.post("/similarity", json=large).status_code == 200
            assert time.monotonic() - began < 4
            load.answered(10)
            assert {answer.result().status_code for answer in polls} == {503}
            began = time.monotonic()
            refused = server.client.put("/domains/news/champion", json={"version": 3 - before})
            assert (refused.status_code, refused.json()["error_type"]) == (503, "Unavailable"), refused.text
            assert time.monotonic() - began < 30
            assert score(server, "films").status_code == 200
            wait_until(lambda: '"the model store could not be read"' in server.log.read_text())
            load.answered(10)
        finally:
            objects.go_on()
        wait_until(lambda: "the model store is read again" in server.log.read_text())
        load.answered(10)
        assert {answer.result().status_code for answer in waiting} <= {404, 503}
    load.nothing_was_lost(slowest=5)
    assert server.log.read_text().count('"the model store could not be read"') == 1  # the jobs' count may say the like
    assert server.client.put("/domains/news/champion", json={"version": 3 - before}).status_code == 200
    wait_until(lambda: score(other, "news").json()["version"] == 3 - before, seconds=2)


def test_doctor_tries_conditional_writes(bucket: Path, tmp_path: Path) -> None:
    done = command("doctor", model_store=address_of(bucket), encoder="tiny")
    assert "read and written, and conditional writes work" in done.stdout, done.stdout
    shown = command("domains", "show", "films", model_store=address_of(bucket), encoder="tiny")
    assert "films" in shown.stdout, shown.stderr
