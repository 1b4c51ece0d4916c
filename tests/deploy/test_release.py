"""What a release consists of, as `make` builds it, and as it works where there is nothing else of this checkout."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import httpx
import pytest
from packaging.requirements import Requirement

import isosim_client
from isosim.export.checkpoints import resolve
from tests.deploy.chart import IMAGE, KEYS, OWN_REDIS, TOOLS, manifests, merged, render
from tests.processes import Server, free_port, wait_until
from tests.text import sentences

ROOT = Path(__file__).parents[2]
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
GUITAR = [["A man is playing a guitar.", "Someone plays an instrument."]]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make dist` makes."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, ROOT / "release" / "dist.py", folder], check=True, cwd=folder)
    return folder


def test_the_distributions_hold_every_file_of_their_packages_and_no_other(dist: Path) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "service"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    (wheel,) = dist.glob("isosim-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    assert {name for name in held if ".dist-info/" not in name} == {
        name.removeprefix("service/") for name in tracked if (ROOT / name).is_file()
    }
    assert {"isosim/py.typed", "isosim/console/index.html"} <= held
    assert any(name.startswith("isosim/export/shipped/") for name in held)
    names = {file.name for file in dist.iterdir()}
    client = isosim_client.__version__
    assert names == {
        f"isosim-{VERSION}-py3-none-any.whl", f"isosim-{VERSION}.tar.gz",
        f"isosim_client-{client}-py3-none-any.whl", f"isosim_client-{client}.tar.gz",
    }  # fmt: skip
    with tarfile.open(dist / f"isosim-{VERSION}.tar.gz") as packed:
        inside = {name.partition("/")[2] for name in packed.getnames()}
    assert {f"service/{name}" for name in held if name.startswith("isosim/")} <= inside


def needed(requirement: Requirement, found: dict[str, Distribution]) -> None:
    """The distributions of this environment that a requirement takes, with those that they take."""
    key = str(Requirement(f"{requirement.name}[{','.join(sorted(requirement.extras))}]")).lower()
    if key in found:
        return
    taken = found[key] = distribution(requirement.name)
    for line in taken.requires or ():
        below = Requirement(line)
        if any(below.marker is None or below.marker.evaluate({"extra": extra}) for extra in ("", *requirement.extras)):
            needed(below, found)


def environment_with(folder: Path, dist: Path, *extras: str) -> Path:
    """An environment with our wheels, and of this one's packages those that the wheels' metadata ask for.

    They are linked, since installing them anew would take minutes and an index; a package that no wheel asks for is
    not there. Gives the environment's `bin`.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (place,) = folder.glob("lib/python3*/site-packages")
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet"]
    subprocess.run([*pip, "--no-index", "--no-deps", *dist.glob("isosim*.whl")], check=True)
    found: dict[str, Distribution] = {}
    ours = [Distribution.at(facts) for facts in place.glob("isosim*.dist-info")]
    names, chosen = [one.name for one in ours], ("", *extras)
    for line in [line for one in ours for line in one.requires or ()]:
        asked = Requirement(line)
        if asked.name not in names and any(
            asked.marker is None or asked.marker.evaluate({"extra": extra}) for extra in chosen
        ):
            needed(asked, found)
    for one in found.values():
        for top in {file.parts[0] for file in one.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if not (place / top).exists():
                (place / top).symlink_to(Path(str(one.locate_file(top))).resolve())
    return folder / "bin"


def run(binaries: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [binaries / "isosim", *words],
        cwd=folder, env=outside(), capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


def outside() -> dict[str, str]:
    """Neither settings nor packages of this checkout."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("ISOSIM_", "PYTHON"))}


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bin` of an environment after `pip install isosim_client-*.whl isosim-*.whl[cpu,train]`."""
    return environment_with(tmp_path_factory.mktemp("installed") / "venv", dist, "cpu", "train")


@pytest.fixture(scope="module")
def first(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`isosim export` and `isosim serve` in an empty folder, without any setting but the port."""
    resolve("minilm")  # into this machine's cache: without pip the environment cannot download it
    folder = tmp_path_factory.mktemp("empty")
    port = free_port()
    log = folder.with_suffix(".log")
    subprocess.run([installed / "isosim", "export"], cwd=folder, env=outside(), capture_output=True, check=True)
    with log.open("wb") as file:
        popen = subprocess.Popen(
            [installed / "isosim", "serve", "--port", str(port)], cwd=folder, env=outside(), stdout=file,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    server = Server(popen, log, url, httpx.Client(base_url=url, timeout=60))
    wait_until(lambda: httpx.get(url + "/readyz").status_code == 200, 600)
    yield server
    server.kill()


def test_from_the_wheel_alone_an_export_makes_a_store_and_the_server_scores_and_calibrates(
    first: Server, installed: Path
) -> None:
    said = first.log.read_text()
    store = Path(f"/proc/{first.popen.pid}/cwd").resolve() / "model_store"
    assert f'"model_store":"{store}"' in said
    package = subprocess.run(
        [installed / "python", "-c", "import isosim; print(isosim.__file__)"], env=outside(), cwd=store,
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert Path(package).is_relative_to(installed.parent)
    assert "libtorch" not in Path(f"/proc/{first.popen.pid}/maps").read_text()
    answer = first.client.post("/similarity", json={"pairs": GUITAR}).raise_for_status().json()
    assert (answer["domain"], answer["version"]) == ("default", 1)
    assert answer["similarity"][0] == pytest.approx(0.6674459, abs=1e-4)  # README's first answer
    assert answer["percentile"][0] > 0.999
    assert first.calibrate("tickets", sentences(400), method="sn")["promoted"]
    assert first.client.get("/console").status_code == 200


def test_a_second_start_exports_nothing_and_without_torch_the_remedy_works(
    first: Server, dist: Path, tmp_path: Path
) -> None:
    binaries = environment_with(tmp_path / "venv", dist, "cpu")
    (tmp_path / "empty").mkdir()
    refused = run(binaries, tmp_path / "empty", "serve", "--port", "0")
    assert refused.returncode == 1
    assert "make a store there: isosim export" in refused.stderr
    refused = run(binaries, tmp_path / "empty", "export")
    assert refused.returncode == 1
    assert "pip install 'isosim[train]'" in refused.stderr
    shutil.copytree(Path(f"/proc/{first.popen.pid}/cwd").resolve() / "model_store", tmp_path / "copied")
    pair = tmp_path / "pair.tsv"
    pair.write_text("\t".join(GUITAR[0]) + "\n")
    scored = run(binaries, tmp_path, "similarity", str(pair), "--model-store", str(tmp_path / "copied"), "--json")
    assert scored.returncode == 0, scored.stderr
    port = free_port()
    with (tmp_path / "log").open("wb") as file:
        popen = subprocess.Popen(
            [binaries / "isosim", "serve", "--port", str(port), "--model-store", tmp_path / "copied"],
            cwd=tmp_path, env=outside(), stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    server = Server(popen, tmp_path / "log", f"http://127.0.0.1:{port}")
    try:
        wait_until(lambda: httpx.get(f"{server.url}/readyz").status_code == 200, 120)
        body = {"pairs": GUITAR, "domain": "tickets"}
        assert httpx.post(f"{server.url}/similarity", json=body).status_code == 200
    finally:
        server.kill()
    assert "exporting" not in (tmp_path / "log").read_text()


def test_the_charts_archive_renders_as_the_chart_does(tmp_path: Path) -> None:
    """So what is tested of the one holds for the other: lint, Kubernetes' schemas, what pods run."""
    makefile = (ROOT / "Makefile").read_text()
    recipe = re.search(r"^chart:.*\n(?:\t.*\n)*?\t@\S+/python -c \"(.+)\"\n", makefile, re.MULTILINE)
    assert recipe is not None
    packaging = recipe[1].replace("destination='dist'", f"destination={str(tmp_path)!r}")
    subprocess.run([TOOLS / "python", "-c", packaging], cwd=ROOT, check=True, capture_output=True)
    archive = tmp_path / f"isosim-{VERSION}.tgz"
    with tarfile.open(archive) as packed:
        held = {name.removeprefix("isosim/") for name in packed.getnames()}
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT / "k8s" / "isosim", capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert held == set(listed) - {".helmignore"} or held == set(listed)
    values = merged(IMAGE, KEYS, OWN_REDIS)
    done = subprocess.run(
        [TOOLS / "python", Path(__file__).with_name("helm.py"), archive],
        input=json.dumps([{"render": values}, {"render": {"nonsense": 1}}]), capture_output=True, text=True, check=True,
    )  # fmt: skip
    rendered, refused = json.loads(done.stdout)
    assert list(manifests(rendered)) == render(IMAGE, KEYS, OWN_REDIS)
    assert "nonsense" in refused["refused"]  # the schema is in the archive


def test_actionlint_finds_nothing_in_the_workflows_and_something_in_a_broken_one(tmp_path: Path) -> None:
    """Its name is that of a fork whose wheel has the program in it (requirements.txt)."""
    workflow = (ROOT / ".github" / "workflows" / "release.yaml").read_text()
    broken = tmp_path / ".github" / "workflows" / "release.yaml"
    broken.parent.mkdir(parents=True)
    broken.write_text(workflow.replace("needs: test\n", "needs: tests\n"))
    for folder, code in ((ROOT, 0), (tmp_path, 1)):
        done = subprocess.run(
            [TOOLS / "actionlint", *sorted(Path(folder, ".github", "workflows").glob("*.yaml"))],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr


def test_every_action_of_the_workflows_is_pinned_by_its_commit() -> None:
    """A tag can be moved to other code, a commit cannot."""
    texts = [path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yaml")]
    used = [line for text in texts for line in text.splitlines() if " uses: " in line]
    assert len(used) > 10
    assert [line for line in used if not re.search(r"@[0-9a-f]{40}  # v\d+\.\d+\.\d+$", line)] == []


@pytest.mark.parametrize(("found", "passes"), [("never", False), ("planted", True), ("audit", False)])
def test_an_audit_passes_if_it_finds_the_planted_package_and_no_other(found: str, passes: bool, tmp_path: Path) -> None:
    """Where the advisories cannot be reached, pip-audit finds nothing and ends with 0."""
    for name in ("Makefile", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv-audit" / "bin").mkdir(parents=True)
    (tmp_path / ".venv-audit" / "ready").touch()
    program = tmp_path / ".venv-audit" / "bin" / "pip-audit"
    program.write_text(f'#!/bin/sh\ncase "$0 $*" in *{found}*) exit 1;; esac\n')
    program.chmod(0o755)
    done = subprocess.run(["make", "--silent", "audit"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) is passes, done.stderr


def test_the_version_stands_in_pyproject_and_everything_else_agrees() -> None:
    said = subprocess.run(["make", "--silent", "version"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert said.strip() == VERSION
    chart = (ROOT / "k8s" / "isosim" / "Chart.yaml").read_text()
    assert re.findall(r"^(version|appVersion): (\S+)$", chart, re.MULTILINE) == [
        ("version", VERSION),
        ("appVersion", VERSION),
    ]
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text()
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## {re.escape(VERSION)}(, |$)", changelog, re.MULTILINE)
    assert re.search(rf"^## isosim-client {re.escape(isosim_client.__version__)}(, |$)", changelog, re.MULTILINE)
    for page in (ROOT / "docs").rglob("*.md"):
        tags = set(re.findall(r"isosim:(\d+\.\d+\.\d+)-", page.read_text(encoding="utf-8")))
        assert tags <= {VERSION}, page
