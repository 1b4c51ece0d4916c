"""Dockerfile, compose files and what lies beside them, without an engine."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from service.modelling.encoder.packaged import KNOWN
from service.settings import unread
from tests.deploy.engine import ROOT, start_engine

TOOLS = Path(sys.executable).parent
COMPOSED = ["docker-compose.yml", "docker-compose.bucket.yml", "docker-compose.gpu.yml"]
DEPLOYED = ["Dockerfile", *COMPOSED, "docs/how-to/docker.md"]


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


@pytest.mark.parametrize("file", DEPLOYED)
def test_every_setting_that_is_named_is_one(file: str) -> None:
    """A misspelt one would be passed over in silence."""
    assert not unread(re.findall(r"\bISOSIM_[A-Z_]+", (ROOT / file).read_text(encoding="utf-8")))


def test_the_labels_version_is_the_packages() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert set(re.findall(r"^ARG VERSION=(.*)", (ROOT / "Dockerfile").read_text(), re.M)) == {version}


def test_the_wheels_for_a_build_without_an_index_are_those_that_it_asks_for() -> None:
    (extras,) = re.findall(r'pyproject.toml "\$extra" ([\w ]+) >', (ROOT / "Dockerfile").read_text())
    assert ", ".join(f'"{extra}"' for extra in extras.split()) + "]" in (ROOT / "docker" / "wheels.py").read_text()
    known = KNOWN["minilm"]
    torch = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
    assert f'"{next(iter(known.packages))}"' in (ROOT / "docker" / "wheels.py").read_text()
    assert f"ARG TORCH={torch}+cpu" in (ROOT / "Dockerfile").read_text()


@pytest.mark.parametrize(("required", "ends"), [("0", pytest.skip.Exception), ("1", pytest.fail.Exception)])
def test_without_an_engine_its_tests_are_skipped_with_the_reason_or_fail_where_all_are_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, required: str, ends: type[BaseException]
) -> None:
    for name, code in (("docker", "exit 1"), ("stand-ins", "echo no package mirror is reached >&2; exit 1")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{code}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("STAND_INS", str(tmp_path / "stand-ins"))
    monkeypatch.setenv("ISOSIM_REQUIRE_ALL", required)
    with pytest.raises(ends, match="no package mirror is reached"):
        start_engine(tmp_path / "engine")
