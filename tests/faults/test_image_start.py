"""The image's entry point on a store that is damaged or read-only: the server starts with the encoder that the image
carries, and says what it cannot put into the store."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from isosim.encoders.store import EncoderStore
from isosim.store.blobs import opened
from isosim.store.identity import create
from tests.faults.conftest import root
from tests.faults.damage import ask, refused
from tests.faults.load import metric
from tests.processes import Process, Server, environment, free_port, score, wait_until
from tests.stores import domains_of, publish

ENTRY = Path(__file__).parents[2] / "docker" / "entrypoint.py"
READ_ONLY = 'set -e; mount --bind "$0" "$0"; mount -o remount,ro,bind "$0"; exec "$@"'  # in a namespace of its own

pytestmark = root
Image = Callable[..., Server]


@pytest.fixture
def image(news: Path, tmp_path: Path) -> Iterator[Image]:
    """Starts `isosim serve` on the store `news` as a container does; the image alone has the tiny encoder."""
    carried = tmp_path / "carried"
    carried.mkdir()
    create(opened(news))
    (news / "encoders").rename(carried / "encoders")
    artifact = EncoderStore.at(carried).find("tiny")
    publish(domains_of(carried), "default", artifact)
    (carried / "exported.json").write_text(json.dumps({"id": artifact.id, "digest": artifact.digest}))
    running: list[Process] = []

    def start(*, mode: str = "rw", **settings: object) -> Server:
        port = free_port()
        log, url = tmp_path / f"image-{port}.log", f"http://127.0.0.1:{port}"
        command = ["unshare", "--mount", "sh", "-c", READ_ONLY, str(news)] if mode == "ro" else []
        with log.open("ab") as file:
            popen = subprocess.Popen(
                [*command, sys.executable, str(ENTRY), "serve", "--init"], start_new_session=True, stdout=file,
                stderr=subprocess.STDOUT,
                env=environment(model_store=news, seed_store=carried, port=port, **settings),
            )  # fmt: skip
        server = Server(popen, log, url, httpx.Client(base_url=url, timeout=60))
        running.append(server)

        def ready() -> bool:
            assert popen.poll() is None, log.read_text()
            return httpx.get(url + "/readyz").status_code == 200

        wait_until(ready, 120)
        return server

    yield start
    for process in running:
        process.kill()


def test_an_image_starts_on_a_store_whose_default_record_is_garbage(image: Image, news: Path) -> None:
    (news / "domains" / "default.json").write_text("garbage")
    server = image()
    assert score(server, "news").json()["version"] == 2
    refused(ask(server, "default"), "default.json")
    assert "the default calibration of tiny cannot be put into the store" in server.log.read_text()


def test_an_image_starts_on_a_read_only_store(image: Image, news: Path) -> None:
    server = image(mode="ro")
    assert score(server, "news").json()["version"] == 2
    assert "Read-only file system" in server.log.read_text()
    assert list(domains_of(news).names()) == ["films", "news"]


def test_an_image_that_starts_on_an_emptied_volume_has_another_store_with_few_domains(image: Image, news: Path) -> None:
    def facts(server: Server, message: str) -> dict[str, object]:
        """Of a line of the log, which a thread writes a little later."""

        def logged() -> list[dict[str, object]]:
            lines = (json.loads(line) for line in server.log.read_text().splitlines() if line.startswith("{"))
            return [line for line in lines if line["message"] == message]

        found: dict[str, object] = wait_until(logged)[0]
        return found

    server = image()
    wait_until(lambda: metric(server, "isosim_servable_domains") == 3)  # default, films, news
    before = facts(server, "starting")["store_id"]
    assert json.loads((news / "store.json").read_bytes())["id"] == before
    server.stop()
    for path in news.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    server = image()
    assert ask(server, "news").status_code == 404
    wait_until(lambda: metric(server, "isosim_servable_domains") == 1)  # IsosimDomainsLost
    assert facts(server, "model store listed")["domains"] == 1
    assert facts(server, "starting")["store_id"] not in (before, None)
