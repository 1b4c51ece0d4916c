"""The image's entry point on a store that is damaged or read-only: what it cannot seed is said, and the server starts.

The script runs as a process of its own in a mount namespace, where what an image carries lies in its place.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from isosim.domains.store import DomainStore
from isosim.encoders.store import EncoderStore
from tests.encoders import publish
from tests.faults.conftest import root
from tests.faults.damage import GARBAGE, ask, refused
from tests.faults.load import metric
from tests.processes import Process, Server, environment, free_port, score, wait_until

ENTRY = Path(__file__).parents[2] / "docker" / "entrypoint.py"
PLACE = (  # in a namespace of its own; /opt holds nothing that Python needs
    'set -e; mount -t tmpfs none /opt; mkdir -p /opt/isosim/model_store; mount --bind "$1" /opt/isosim/model_store; '
    '[ "$3" = rw ] || { mount --bind "$2" "$2"; mount -o remount,ro,bind "$2"; }; shift 3; exec "$@"'
)

pytestmark = root
Image = Callable[..., Server]


@pytest.fixture
def image(news: Path, tmp_path: Path) -> Iterator[Image]:
    """Starts `isosim serve` on the store `news` as a container does; the image carries the tiny encoder."""
    carried = tmp_path / "carried"
    shutil.copytree(news / "encoders", carried / "encoders")
    artifact = EncoderStore(carried).find("tiny")
    publish(carried, artifact)
    (carried / "exported.json").write_text(json.dumps({"id": artifact.id, "digest": artifact.digest}))
    running: list[Process] = []

    def start(*, mode: str = "rw", **settings: object) -> Server:
        port = free_port()
        log, url = tmp_path / f"image-{port}.log", f"http://127.0.0.1:{port}"
        command = ["unshare", "--mount", "sh", "-c", PLACE, "sh", str(carried), str(news), mode]
        with log.open("ab") as file:
            popen = subprocess.Popen(
                [*command, sys.executable, str(ENTRY), "serve"], start_new_session=True, stdout=file,
                stderr=subprocess.STDOUT, env=environment(model_store=news, port=port, **settings),
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


def test_an_image_starts_on_a_store_whose_default_aliases_are_garbage(image: Image, news: Path) -> None:
    default = news / "domains" / "default"
    default.mkdir()
    for garbage in GARBAGE[1:3]:
        (default / "aliases.json").write_text(garbage)
        server = image()
        assert score(server, "news").json()["version"] == 2
        refused(ask(server, "default"), "aliases.json")
        said = "could not copy an encoder or calibration of this image into the model store: aliases.json"
        assert said in server.log.read_text()
        server.stop()


def test_an_image_starts_on_a_read_only_store(image: Image, news: Path) -> None:
    server = image(mode="ro")
    assert score(server, "news").json()["version"] == 2
    assert "Read-only file system" in server.log.read_text()
    assert DomainStore(news).domains() == ["films", "news"]


def test_an_image_starts_on_a_store_whose_champion_is_damaged(image: Image, news: Path) -> None:
    (news / "domains" / "news" / "2" / "weights.safetensors").write_bytes(b"")
    server = image()
    refused(ask(server, "news"), "weights.safetensors")
    assert score(server, "films").json()["version"] == 1
    assert score(server, "default").json()["version"] == 1  # the image's own, which the store was given


def test_an_image_that_starts_on_an_emptied_volume_has_another_store_with_few_domains(image: Image, news: Path) -> None:
    def facts(server: Server, message: str) -> dict[str, object]:
        lines = (json.loads(line) for line in server.log.read_text().splitlines() if line.startswith("{"))
        return next(line for line in lines if line["message"] == message)

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
