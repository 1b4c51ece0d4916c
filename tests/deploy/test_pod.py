"""The rendered pods, played for real: API, Redis and `helm test` as containers with the rights that the chart gives."""

import hashlib
import json
import signal
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.deploy import rootfs
from tests.deploy.chart import IMAGE, KEYS, OWN_REDIS, Manifest, Values, named, render
from tests.deploy.engine import Engine
from tests.deploy.podman import Podman, ready_to_play
from tests.processes import wait_until
from tests.text import sentences

KEY, PASSWORD = "a-key-for-the-pods", "apasswordforredis"
VALUES: Values = {
    "encoder": "tiny",
    "service": {"port": 8000},
    "api": {"replicas": 1, "drain": {"delay": 4, "seconds": 5}},
}
API, REDIS, TEST = "similarity-isosim-api-pod-0-api", "similarity-isosim-redis-redis", "similarity-isosim-test-test"


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    # Podman takes no path of more than 50 characters for what it keeps while it runs, and pytest's folders are longer.
    with tempfile.TemporaryDirectory(prefix="pods-") as folder:
        podman = Podman(Path(folder))
        yield podman
        podman.clean()


@pytest.fixture(scope="module")
def rendered() -> list[Manifest]:
    return render(IMAGE, KEYS, OWN_REDIS, VALUES)


def image_of(manifest: Manifest) -> str:
    return str(manifest["spec"]["template"]["spec"]["containers"][0]["image"])


@pytest.fixture(scope="module")
def api_image(podman: Podman, rendered: list[Manifest], engine: Engine, cpu: str, tmp_path_factory: Any) -> None:
    """The image that the tests of the Dockerfile build, under the name that the chart asks for."""
    archive: Path = tmp_path_factory.mktemp("image") / "image.tar"
    engine.docker("save", "--output", str(archive), cpu)
    podman.run("load", "--quiet", "--input", archive)
    podman.run("tag", cpu, image_of(named(rendered, "Deployment", "-api")))
    archive.unlink()


@dataclass
class Pods:
    podman: Podman
    rendered: list[Manifest]
    client: httpx.Client

    @property
    def api(self) -> dict[str, Any]:
        found: dict[str, Any] = named(self.rendered, "Deployment", "-api")["spec"]["template"]["spec"]
        return found


@pytest.fixture(scope="module")
def pods(podman: Podman, rendered: list[Manifest], api_image: None, tiny_store: Path, tmp_path_factory: Any) -> Pods:
    """Redis, then the API: the manifests as they are, but for what podman has not (see ready_to_play)."""
    redis = named(rendered, "StatefulSet")
    root: Path = tmp_path_factory.mktemp("redis")
    rootfs.of_programs(root, "redis-server", "redis-cli")
    podman.load(root, image_of(redis))
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    secrets = {
        "similarity-redis": {"password": PASSWORD},
        "similarity-keys": {"api-keys": f"{digest} read,admin domains=* me\n"},
    }
    podman.secret("similarity-keys", secrets["similarity-keys"])
    podman.volume("similarity-isosim-model-store", tiny_store, owner=10001)
    alone = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": redis["metadata"]["name"]}}
    podman.play(ready_to_play(alone | {"spec": redis["spec"]["template"]["spec"]}, secrets))
    names = {redis["metadata"]["name"]: podman.address(REDIS)}
    api = ready_to_play(named(rendered, "Deployment", "-api"), secrets, names)
    podman.play(named(rendered, "ConfigMap", "similarity-isosim"), api)
    client = httpx.Client(
        base_url=f"http://{podman.address(API)}:8000", headers={"authorization": f"Bearer {KEY}"}, timeout=30
    )

    def ready() -> bool:
        assert podman.inspect(API)["State"]["Running"], podman.run("logs", API)
        return client.get("/readyz").status_code == 200

    wait_until(ready, 60)
    return Pods(podman, rendered, client)


def test_every_probe_of_the_manifest_succeeds(pods: Pods) -> None:
    container = pods.api["containers"][0]
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container[kind]["httpGet"]
        assert asked["port"] == container["ports"][0]["name"]
        began = time.monotonic()
        assert pods.client.get(asked["path"]).status_code == 200, kind
        assert time.monotonic() - began < container[kind]["timeoutSeconds"]
    probe = named(pods.rendered, "StatefulSet")["spec"]["template"]["spec"]["containers"][0]["readinessProbe"]
    assert pods.podman.run("exec", REDIS, *probe["exec"]["command"]).strip() == "PONG"


def test_it_scores_for_those_who_have_a_key(pods: Pods) -> None:
    body = {"pairs": [sentences(2)]}
    assert len(pods.client.post("/similarity", json=body).raise_for_status().json()["similarity"]) == 1
    assert pods.client.post("/similarity", json=body, headers={"authorization": ""}).status_code == 401


def test_redis_takes_its_vectors_and_asks_for_the_password(pods: Pods) -> None:
    pods.client.post("/embed", json={"inputs": ["a text that comes twice"]}).raise_for_status()
    wait_until(lambda: int(pods.podman.run("exec", REDIS, "redis-cli", "dbsize")) > 0)
    policy = pods.podman.run("exec", REDIS, "redis-cli", "config", "get", "maxmemory*")
    assert {"volatile-lru", str(512 * 2**20)} <= set(policy.split())
    refused = pods.podman.run("exec", "--env", "REDISCLI_AUTH=", REDIS, "redis-cli", "-e", "ping", check=False)
    assert "PONG" not in refused


RIGHTS = """
import json, os
def writable(path):
    try:
        open(path + "/probe", "w").close()
        return True
    except OSError:
        return False
status = dict(line.split(":\\t", 1) for line in open("/proc/1/status").read().splitlines())
folders = ["/", "/etc", "/usr/local/bin", "/etc/isosim/keys", "/var", "/tmp", "/model_store"]
print(json.dumps({"uid": os.getuid(), "gid": os.getgid(), "status": status, "environment": dict(os.environ),
                  "writable": [folder for folder in folders if writable(folder)]}))
"""


def test_it_has_the_rights_that_the_manifest_says(pods: Pods) -> None:
    found = json.loads(pods.podman.python(API, RIGHTS))
    assert (found["uid"], found["gid"]) == (10001, 10001)
    assert {found["status"][name] for name in ("CapEff", "CapPrm", "CapBnd")} == {"0" * 16}
    assert found["status"]["NoNewPrivs"] == "1"
    assert found["status"]["Seccomp"] == "2"  # a filter
    assert found["writable"] == ["/tmp", "/model_store"]  # noqa: S108
    limits = pods.podman.inspect(API)["HostConfig"]
    assert (limits["Memory"], limits["CpuQuota"] / limits["CpuPeriod"]) == (2**30, 2)


def test_its_environment_is_what_the_chart_gives(pods: Pods) -> None:
    """Nothing of Services: one named isosim would set ISOSIM_PORT to an address."""
    environment = json.loads(pods.podman.python(API, RIGHTS))["environment"]
    ours = {name: value for name, value in environment.items() if name.startswith("ISOSIM_")}
    given = {variable["name"] for variable in pods.api["containers"][0]["env"]}
    settings = named(pods.rendered, "ConfigMap", "similarity-isosim")["data"]
    of_image = {"ISOSIM_SEED_STORE"}
    assert ours.keys() == {name for name in given if name.startswith("ISOSIM_")} | settings.keys() | of_image
    assert ours["ISOSIM_PORT"] == "8000"
    assert environment["HOME"] == "/tmp"  # noqa: S108


def test_helm_test_passes_through_the_service(pods: Pods) -> None:
    """The Service's name and port stand for the API's pod."""
    names = {"similarity-isosim": pods.podman.address(API)}
    pods.podman.play(ready_to_play(named(pods.rendered, "Pod", "-test"), {}, names))
    wait_until(lambda: pods.podman.inspect(TEST)["State"]["Status"] == "exited")
    log = pods.podman.run("logs", TEST)
    assert pods.podman.inspect(TEST)["State"]["ExitCode"] == 0, log
    assert "a request without a key is refused" in log


def test_the_doctor_finds_no_fault_in_it(pods: Pods) -> None:
    findings = json.loads(pods.podman.run("exec", API, "isosim", "doctor", "--json"))["checks"]
    states = {finding["check"]: finding["state"] for finding in findings}
    assert "fault" not in states.values(), findings
    assert (states["redis"], states["store"], states["server"]) == ("ok", "ok", "ok"), findings


def test_told_to_stop_it_serves_on_until_balancers_know_and_ends_within_its_grace(pods: Pods) -> None:
    """Last: the pod is gone afterwards. What the deployment's comments promise of a stopping pod."""
    body = {"pairs": [sentences(2)]}
    grace, began = pods.api["terminationGracePeriodSeconds"], time.monotonic()
    with ThreadPoolExecutor(1) as kubelet:
        stopped = kubelet.submit(pods.podman.run, "stop", "--time", str(grace), API)
        wait_until(lambda: pods.client.get("/readyz").status_code == 503, every=0.01)
        assert pods.client.post("/similarity", json=body).status_code == 200
        stopped.result()
    assert VALUES["api"]["drain"]["delay"] < time.monotonic() - began < grace
    assert pods.podman.inspect(API)["State"]["ExitCode"] in {0, 128 + signal.SIGTERM}  # not 137, killed
