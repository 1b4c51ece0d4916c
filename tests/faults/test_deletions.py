"""What one process deletes, no other serves on: replicas on one folder, and on one bucket."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.adapters.encoder_store import EncoderArtifact
from service.adapters.object_storage import address
from service.adapters.seeding import seed
from tests.commands.conftest import calibrate
from tests.conftest import RedisServer, Serve, Server, wait_until
from tests.http.test_calibrate import score
from tests.objects import objects  # noqa: F401 - a fixture

SOON = 2.0  # s in which every replica has seen a change


@pytest.fixture(params=["folder", "bucket"])
def replicas(
    request: pytest.FixtureRequest, serve: Serve, tiny_store: Path, tiny: EncoderArtifact, tmp_path: Path
) -> Iterator[list[Server]]:
    """Two servers on one store: `news@1` to `news@3`, the last one champion, and `films@1`."""
    root = tmp_path / "store" if request.param == "folder" else request.getfixturevalue("objects").bucket()
    seed(tiny_store, root)
    for domain, method in (("news", "whitening"), ("news", "sn"), ("news", "centring"), ("films", "soft")):
        calibrate(root, tiny, domain, method)
    if request.param == "folder":
        redis: RedisServer = request.getfixturevalue("redis_server")
        yield [serve(model_store=root, encoder="tiny", redis_url=redis.url) for _ in range(2)]
        return
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    yield [serve(model_store=address(root), encoder="tiny", jobs_folder=folder) for folder in folders]


def status(server: Server, name: str) -> int:
    return server.client.post("/similarity", json={"pairs": [["a", "b"]], "domain": name}).status_code


def within(seconds: float, met: Callable[[], bool]) -> None:
    began = time.monotonic()
    wait_until(met, seconds=seconds, every=0.02)
    print(f"seen after {time.monotonic() - began:.2f} s")


def test_a_deleted_version_is_not_served_by_another_replica_that_has_it_in_memory(replicas: list[Server]) -> None:
    first, second = replicas
    assert [status(server, "news@1") for server in replicas] == [200, 200]
    assert score(second, "news").json()["version"] == 3
    assert first.client.delete("/domains/news/versions/1").status_code == 204
    assert status(first, "news@1") == 404
    within(SOON, lambda: status(second, "news@1") == 404)
    assert score(second, "news").json()["version"] == 3
    assert status(second, "films@1") == 200
