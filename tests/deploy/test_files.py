"""Dockerfile, compose files and what lies beside them, without an engine."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

from isosim.export.packaged import KNOWN
from tests.deploy.engine import ROOT

TOOLS = Path(sys.executable).parent
COMPOSED = ["docker-compose.yml", "docker-compose.bucket.yml", "docker-compose.gpu.yml"]


def succeeds(*command: str | Path, **environment: str) -> None:
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_hadolint_finds_nothing() -> None:
    succeeds(TOOLS / "hadolint", "Dockerfile")


def test_yamllint_finds_nothing() -> None:
    succeeds(TOOLS / "yamllint", "--strict", *COMPOSED, "docker", ".github")


def test_prometheus_takes_its_configuration() -> None:
    assert shutil.which("promtool"), "promtool is missing; make test-all installs it"
    succeeds("promtool", "check", "config", "docker/prometheus.yml")


def test_alertmanager_takes_its_configuration() -> None:
    assert shutil.which("amtool"), "amtool is missing; make test-all installs it"
    succeeds("amtool", "check-config", "docker/alertmanager.yml")


def test_grafana_finds_what_it_is_provisioned_with() -> None:
    """Grafana itself cannot be had here: its files name each other, Prometheus' container and what is mounted."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    grafana, prometheus = services["grafana"], services["prometheus"]
    mounts = dict(volume.split(":")[:2] for volume in grafana["volumes"])
    provisioned = {
        Path(place).parent.name: ROOT / source for source, place in mounts.items() if "provisioning" in place
    }
    (source,) = yaml.safe_load(provisioned["datasources"].read_text())["datasources"]
    assert set(grafana["networks"]) & set(prometheus["networks"])
    port = prometheus["ports"][0].rpartition(":")[2]
    assert (source["type"], source["url"], source["isDefault"]) == ("prometheus", f"http://prometheus:{port}", True)
    scraped = yaml.safe_load((ROOT / "docker" / "prometheus.yml").read_text())["global"]["scrape_interval"]
    assert source["jsonData"] == {"timeInterval": scraped}
    (provider,) = yaml.safe_load(provisioned["dashboards"].read_text())["providers"]
    (folder,) = [name for name, place in mounts.items() if place == provider["options"]["path"]]
    boards = {path.name: json.loads(path.read_text()) for path in (ROOT / folder).glob("*.json")}
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert str(home.parent) == provider["options"]["path"]
    for board in boards.values():
        assert board["uid"]
        kinds = {one["query"] for one in board["templating"]["list"] if one["type"] == "datasource"}
        assert kinds == {source["type"]}
    assert home.name in boards


def test_what_watches_starts_on_request_alone() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    on_request = {name for name, service in services.items() if service.get("profiles") == ["monitoring"]}
    assert on_request == {"prometheus", "alertmanager", "grafana"}
    for name in on_request:
        assert all(port.startswith("127.0.0.1:") for port in services[name]["ports"]), name


def test_with_a_bucket_api_and_worker_get_its_address_and_credentials() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.bucket.yml").read_text())["services"]
    assert services["api"]["environment"] == services["worker"]["environment"]
    names = {"ISOSIM_MODEL_STORE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"}
    assert names <= services["api"]["environment"].keys()
    assert services["worker"]["networks"] == ["outside"]  # its own network has no way out


def test_the_labels_version_is_the_packages() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert set(re.findall(r"^ARG VERSION=(.*)", (ROOT / "Dockerfile").read_text(), re.M)) == {version}


def test_the_stage_that_exports_an_encoder_has_the_code_for_it(tmp_path: Path) -> None:
    """It copies some folders of the package alone, so that a change of the API does not repeat the export."""
    stage = (ROOT / "Dockerfile").read_text().partition("AS baked-encoder")[2].partition("\nFROM ")[0]
    for folder in re.findall(r"^COPY (service/isosim/[a-z]+) ", stage, re.M):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for module in (ROOT / "service" / "isosim").glob("*.py"):
        shutil.copy(module, tmp_path / "service" / "isosim")
    code = "import isosim.export.model_store, isosim.export.reduced; from isosim.cli import load; load('export')"
    given = os.environ | {"PYTHONPATH": str(tmp_path / "service")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=given, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_wheels_for_a_build_without_an_index_are_those_that_it_asks_for() -> None:
    (extras,) = re.findall(r'pyproject.toml "\$extra" ([\w ]+) >', (ROOT / "Dockerfile").read_text())
    assert ", ".join(f'"{extra}"' for extra in extras.split()) + "]" in (ROOT / "docker" / "wheels.py").read_text()
    known = KNOWN["minilm"]
    torch = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
    assert f'"{known.package}"' in (ROOT / "docker" / "wheels.py").read_text()
    assert f"ARG TORCH={torch}+cpu" in (ROOT / "Dockerfile").read_text()
