"""Runbooks: a server is brought into the state of a section, and its commands show what it says and cure it."""

import hashlib
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from isosim.encoders.store import EncoderStore
from isosim.export.remote import register
from isosim.jobs.job import JobRequest, Status
from tests.adapters.encoder.remote_server import RemoteServer
from tests.faults.damage import ask, refused
from tests.faults.load import metric
from tests.faults.test_corrupt import flip
from tests.processes import (
    Process,
    RedisServer,
    Serve,
    Server,
    environment,
    score,
    wait_until,
)
from tests.stores import files_of, jobs_of, post_job
from tests.text import sentences

RUNBOOKS = Path(__file__).parents[2] / "docs" / "runbooks.md"
KEY = "the-operators-key"
# Sections without a command that runs outside a cluster: `kubectl` and queries alone.
OF_A_CLUSTER = {
    "ChampionsDiffer", "Down", "EncoderMismatch", "FreshnessBurn", "LatencyBurn", "NotReady", "Restarting",
}  # fmt: skip


def sections() -> dict[str, list[str]]:
    """The shell lines of each alert's section that need no cluster."""
    found = re.findall(r"^## Isosim(\w+)\n(.+?)(?=^## |\Z)", RUNBOOKS.read_text(encoding="utf-8"), re.M | re.S)
    return {name: commands(text) for name, text in found}


def commands(text: str) -> list[str]:
    blocks = "\n".join(re.findall(r"^```sh\n(.+?)\n```$", text, re.M | re.S)).replace("\\\n", " ")
    return [line for line in blocks.splitlines() if line and not line.startswith(("kubectl ", "helm "))]


class Site:
    """A server with a store and a Redis, and the shell of its operator."""

    def __init__(self, server: Server, redis: RedisServer | None, **settings: object) -> None:
        self.server, self.redis = server, redis
        self.settings = environment(**settings)

    def look(self, alert: str, cure: bool = False, **places: str) -> str:
        """Everything that the section's commands print; only with `cure` those that change something."""
        names = {"URL": self.server.url, "KEY": KEY, "LOG": self.server.log, "PYTHON": sys.executable}
        prelude = "\n".join(f"{name}={shlex.quote(str(value))}" for name, value in names.items()) + (
            '\nlogs() { cat "$LOG"; }\nworker_logs() { cat "$LOG"; }\nisosim() { "$PYTHON" -m isosim.cli "$@"; }\n'
        )
        said = ""
        for command in sections()[alert]:
            if ("-X POST" in command) is not cure:
                continue
            line = re.sub(r"\b(DOMAIN|NAME)\b", lambda match: places[match[0]], command)
            done = subprocess.run(
                ["bash", "-c", prelude + line], env=self.settings, capture_output=True, text=True, timeout=120,
                check=False, cwd=RUNBOOKS.parent,
            )  # fmt: skip
            assert "not found" not in done.stderr, done.stderr
            said += done.stdout + done.stderr
        return said


def shows(said: str, *words: str) -> None:
    assert [word for word in words if word not in said] == [], said


def test_every_section_is_played_or_named_as_one_of_a_cluster() -> None:
    with_commands = {alert for alert, lines in sections().items() if lines}
    assert sections().keys() - with_commands == OF_A_CLUSTER
    assert with_commands == set(re.findall(r'\blook\(\s*"(\w+)"', Path(__file__).read_text()))


@pytest.fixture
def site(serve: Serve, news: Path, redis_server: RedisServer, tmp_path: Path) -> Site:
    """A damaged champion of `news`, a key, and no worker."""
    flip(files_of(news, "news", 2) / "weights.safetensors")
    (tmp_path / "keys").write_text(
        f"{hashlib.sha256(KEY.encode()).hexdigest()} read,calibrate,admin domains=* operator\n"
    )
    settings = {
        "model_store": news, "encoder": "tiny", "redis_url": redis_server.url, "api_keys_file": tmp_path / "keys",
        "local_worker": False,
    }  # fmt: skip
    server = serve(**settings)
    server.client.headers["authorization"] = f"Bearer {KEY}"
    return Site(server, redis_server, **settings)


def test_the_sections_on_domains_keys_and_errors(site: Site, tmp_path: Path) -> None:
    server = site.server
    refused(ask(server, "news"), "weights.safetensors")
    wait_until(lambda: "CorruptArtifact" in server.log.read_text())
    assert metric(server, "isosim_calibration_load_failures_total") >= 1
    shows(
        site.look("CalibrationLoadFailing"),
        "champion of news not loaded", "weights.safetensors", "isosim domains promote news 1",
    )  # fmt: skip
    shows(site.look("AvailabilityBurn"), "CorruptArtifact", '"route":"/similarity"', '"request_id"')
    shows(site.look("CalibrationLoadFailing", cure=True, DOMAIN="news"), '"champion":1')
    assert score(server, "news").json()["version"] == 1
    assert "weights.safetensors" not in site.look("CalibrationLoadFailing").rpartition("champion of news")[2][300:]
    shows(site.look("DomainsLost"), '"store_id"', '"message":"model store listed"', "films")
    shows(site.look("VolumeFull"), "would be freed")

    right = (tmp_path / "keys").read_text()
    (tmp_path / "keys").write_text(right + "nonsense\n")
    wait_until(lambda: metric(server, "isosim_api_keys_file_valid") == 0)
    wait_until(lambda: "stay in force" in server.log.read_text())  # lines are written a moment later
    shows(site.look("KeysFileBroken"), "the API keys read before stay in force", "line 2")
    assert score(server, "news").status_code == 200
    (tmp_path / "keys").write_text(right)
    wait_until(lambda: metric(server, "isosim_api_keys_file_valid") == 1)
    wait_until(lambda: "is valid again" in server.log.read_text())
    shows(site.look("KeysFileBroken"), "is valid again")


def test_the_sections_on_redis(site: Site) -> None:
    server, redis = site.server, site.redis
    assert redis is not None
    subprocess.run(["redis-cli", "-p", str(redis.port), "config", "set", "maxmemory", "1"], check=True)
    server.client.post("/embed", json={"inputs": sentences(3)}).raise_for_status()
    wait_until(lambda: "Redis refuses vectors" in server.log.read_text())
    shows(site.look("RedisDown"), "ms a lookup", "Redis refuses vectors: OutOfMemoryError")
    subprocess.run(["redis-cli", "-p", str(redis.port), "config", "set", "maxmemory", "100mb"], check=True)
    redis.kill()
    wait_until(lambda: metric(server, "isosim_redis_up") == 0)
    assert score(server, "films").status_code == 200
    shows(site.look("RedisDown"), "redis\tthe connection is refused", "Redis cannot be used")
    redis.start()
    wait_until(lambda: "Redis answers again" in site.look("RedisDown"))


def test_the_sections_on_jobs(site: Site, worker: Callable[..., Process], tmp_path: Path) -> None:
    """One that fails, and one that waits for a worker."""
    store = tmp_path / "news"
    artifact, jobs = EncoderStore.at(store).find("tiny"), jobs_of(store)

    def job(domain: str, method: str = "sn") -> str:
        wanted = JobRequest(domain, artifact.digest, artifact.id, method, sentences=300)
        return post_job(jobs, wanted, sentences(300)).id

    failing = job("fails", "of no kind")
    words = [sys.executable, "-m", "isosim.cli", "worker", "--burst"]
    subprocess.run(words, env=site.settings, timeout=600, check=True)
    waiting = job("waits")
    said = site.look("JobsNotTaken")
    shows(said, failing, '"status":"failed"', '"error":', waiting, '"status":"queued"', '"notices":[]')
    worker(model_store=store)
    wait_until(lambda: jobs.read(waiting).status is Status.SUCCEEDED, 300)


@pytest.fixture
def remote() -> Iterator[RemoteServer]:
    with RemoteServer(dim=16).running() as running:
        yield running


def test_the_sections_on_remote_encoders(serve: Serve, remote: RemoteServer, tmp_path: Path) -> None:
    register(tmp_path / "far", "far", remote.url, "m", lambda _: None)
    settings = {"model_store": tmp_path / "far", "encoder": "far"}
    server = serve(**settings)
    site = Site(server, None, **settings)
    remote.seed = 1
    pair = {"pairs": [sentences(2)]}
    assert server.client.post("/similarity", json=pair).status_code == 503
    assert server.client.get("/readyz").status_code == 503
    wait_until(lambda: "EncoderChanged" in server.log.read_text())
    shows(site.look("EncoderChanged", NAME="far"), remote.url, "encoder_changed")
    remote.seed = 0
    wait_until(lambda: server.client.get("/readyz").status_code == 200)
    assert server.client.post("/similarity", json=pair).status_code == 200

    remote.answer = lambda *_: (401, b'{"error": "no such key"}', {})
    assert server.client.post("/similarity", json={"pairs": [sentences(4)[2:]]}).status_code == 424
    shows(site.look("RemoteEncoderDown", NAME="far"), remote.url, "401")
    remote.answer = None
    assert wait_until(lambda: server.client.post("/similarity", json={"pairs": [sentences(4)[2:]]}).status_code == 200)
