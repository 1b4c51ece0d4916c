"""docker-compose.yml on a real engine, but for Grafana: a calibration by the worker, Redis killed under requests."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.deploy import stand_ins
from tests.deploy.conftest import offline
from tests.deploy.engine import Container, Engine, answers
from tests.docs.pages import ADDRESS, DEPLOY, blocks
from tests.processes import Server, free_port, wait_until
from tests.text import sentences

PAGE = "docs/how-to/compose.md"
PROFILE = ("--profile", "monitoring")


@pytest.fixture(scope="module")
def project(engine: Engine, tree: Path, cpu: str, worker: str, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """An engine whose environment names this project's images and ports."""
    folder = tmp_path_factory.mktemp("stand-ins")
    chosen = {
        "COMPOSE_PROJECT_NAME": engine.name,
        "API_IMAGE": cpu,
        "WORKER_IMAGE": worker,
        "REDIS_IMAGE": stand_ins.redis(engine, folder),
        "PROMETHEUS_IMAGE": stand_ins.prometheus(engine, folder),
        "ALERTMANAGER_IMAGE": stand_ins.alertmanager(engine, folder),
        "API_PORT": str(free_port()),
        "PROMETHEUS_PORT": str(free_port()),
        "ALERTMANAGER_PORT": str(free_port()),
    }
    return Engine(engine.name, engine.environment | chosen, engine.compose)


@pytest.fixture(scope="module")
def stack(project: Engine, tree: Path) -> Iterator[dict[str, Container]]:
    """Its containers by service, once all that have a health check are healthy."""
    try:
        services = ("api", "worker", "redis", "prometheus", "alertmanager")  # Grafana's image is not to be had
        project.run(*project.compose, *PROFILE, "up", "--detach", *services, cwd=tree)
        found = {}
        for service in services:
            found[service] = Container(project, project.run(*project.compose, "ps", "-q", service, cwd=tree).strip())
            if "Health" in found[service].state:
                found[service].healthy()
        yield found
    finally:
        project.run(*project.compose, *PROFILE, "down", "--volumes", "--timeout", "5", cwd=tree)


@pytest.fixture(scope="module")
def api(project: Engine, stack: dict[str, Container], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with stack["api"].server(tmp_path_factory.mktemp("api") / "log") as server:
        assert server.url == f"http://127.0.0.1:{project.environment['API_PORT']}"
        yield server


def test_every_part_is_confined(project: Engine, stack: dict[str, Container]) -> None:
    for service, container in stack.items():
        found = project.inspect(container.id)
        host = found["HostConfig"]
        assert host["ReadonlyRootfs"], service
        assert host["CapDrop"] == ["ALL"], service
        assert "no-new-privileges" in str(host["SecurityOpt"]), service
        assert host["Memory"] > 0, service
        assert host["NanoCpus"] > 0, service
        assert host["PidsLimit"] > 0, service
        status = Path(f"/proc/{container.state['Pid']}/status").read_text()
        assert re.search(r"^Uid:\t([1-9]\d*)\t\1\t\1\t\1$", status, re.M), service
        for port in (host["PortBindings"] or {}).values():
            assert {binding["HostIp"] for binding in port} == {"127.0.0.1"}, service
    assert not project.inspect(stack["redis"].id)["HostConfig"]["PortBindings"]


def test_the_api_answers(api: Server) -> None:
    answer = answers(api.url)
    assert answer.status_code == 200, answer.text
    assert answer.json()["similarity"] == [pytest.approx(0.6674459, abs=1e-4)]


def test_a_calibration_goes_through_the_worker_to_a_promoted_version(api: Server, stack: dict[str, Container]) -> None:
    job = api.calibrate("tickets", sentences(1500))
    assert (job["status"], job["promoted"], job["version"]) == ("succeeded", True, 1), job
    assert job["job"] in stack["worker"].log()
    body = {"pairs": [sentences(2)], "domain": "tickets"}
    scored = wait_until(lambda: a if (a := api.client.post("/similarity", json=body)).status_code == 200 else None)
    assert scored.json()["version"] == 1
    assert scored.json()["percentile"] is not None


def test_prometheus_scrapes_the_api(project: Engine, api: Server) -> None:
    url = f"http://127.0.0.1:{project.environment['PROMETHEUS_PORT']}/api/v1"

    def seen() -> bool:
        targets = httpx.get(f"{url}/targets").json()["data"]["activeTargets"]
        return [target["health"] for target in targets if target["labels"]["job"] == "isosim"] == ["up"]

    wait_until(seen, seconds=60)
    found = httpx.get(f"{url}/query", params={"query": "isosim_ready"}).json()["data"]["result"]
    assert [sample["value"][1] for sample in found] == ["1"]
    # It has rules, and Alertmanager is there to be told: both are of the files that are mounted.
    assert httpx.get(f"{url}/rules").json()["data"]["groups"]
    wait_until(lambda: httpx.get(f"{url}/alertmanagers").json()["data"]["activeAlertmanagers"], seconds=60)
    alerts = f"http://127.0.0.1:{project.environment['ALERTMANAGER_PORT']}/api/v2"
    sent = [{"labels": {"alertname": "IsosimRedisDown", "severity": "warning"}}]
    httpx.post(f"{alerts}/alerts", json=sent).raise_for_status()
    (told,) = wait_until(lambda: httpx.get(f"{alerts}/alerts", params={"filter": 'alertname="IsosimRedisDown"'}).json())
    assert [receiver["name"] for receiver in told["receivers"]] == ["operators"]


def test_every_command_of_the_page_runs(project: Engine, stack: dict[str, Container], api: Server, tree: Path) -> None:
    """The last test here: its last command takes everything down. What is built or up already is not built again."""
    (tree / "tickets.txt").write_text("\n".join(sentences(500)) + "\n")
    images = f"{project.name}-page"  # the page builds under the names that it runs
    for target in ("cpu", "worker"):
        project.docker("tag", f"{project.name}:{target}", f"{images}:{target}")
    chosen = project.environment | {"IMAGE": images} | offline(tree)
    reader = Engine(project.name, chosen, project.compose)
    ran = [block.code for block in blocks(PAGE, DEPLOY)]
    assert ran
    for code in ran:
        local = code.replace(ADDRESS, api.url).replace("docker compose", " ".join(project.compose))
        reader.run("bash", "-euo", "pipefail", "-c", local.replace("isosim:", f"{images}:"), cwd=tree)
    assert not reader.docker("ps", "--quiet", "--filter", f"label=com.docker.compose.project={project.name}")
