"""An engine, and the images built on it as a site without a package index builds them; all is gone afterwards."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.chart import Manifest
from tests.deploy.combinations import render_all
from tests.deploy.engine import ROOT, Engine, start_engine, stop_engine

REVISION = "0123456789abcdef"


@pytest.fixture(scope="session")
def rendered() -> dict[str, list[Manifest]]:
    return render_all()


@pytest.fixture(scope="session")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of this checkout in a place of their own."""
    folder = tmp_path_factory.mktemp("tree")
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in names.split("\0"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    (folder / "pip.conf").write_text("[global]\nno-index = true\n")
    return folder


@pytest.fixture(scope="session")
def wheels(copied: Path) -> Iterator["subprocess.Popen[str]"]:
    """Fetches what the images install, while the engine starts."""
    with subprocess.Popen(
        [sys.executable, "docker/wheels.py"], cwd=copied, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as popen:
        yield popen
        popen.kill()  # still under way where there is no engine


@pytest.fixture(scope="session")
def engine(wheels: "subprocess.Popen[str]", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("engine")
    try:
        engine = start_engine(folder)
        yield engine
        engine.clean()
    finally:
        stop_engine(folder)


@pytest.fixture(scope="session")
def tree(copied: Path, wheels: "subprocess.Popen[str]") -> Path:
    """The same, with all wheels there."""
    _, said = wheels.communicate(timeout=600)
    assert wheels.returncode == 0, said[-4000:]
    return copied


def build(engine: Engine, tree: Path, images: str, name: str = "", arguments: str = "") -> str:
    """`make images` without a network: all comes out of docker/wheels. Gives the repository, without the tag."""
    repository = f"{engine.name}{name}"
    words = [f"{name}={value}" for name, value in offline(tree).items()]
    engine.run("make", "images", f"IMAGES={images}", f"IMAGE={repository}", f"BUILD_ARGS={arguments}", *words, cwd=tree)
    return repository


def offline(tree: Path) -> dict[str, str]:
    """Of `make images`."""
    return {"PIP_CONF": str(tree / "pip.conf"), "NETWORK": "none", "REVISION": REVISION}


@pytest.fixture(scope="session")
def cpu(engine: Engine, tree: Path) -> str:
    return build(engine, tree, "cpu") + ":cpu"


@pytest.fixture(scope="session")
def worker(engine: Engine, tree: Path) -> str:
    return build(engine, tree, "worker") + ":worker"


@pytest.fixture(scope="session")
def bare(engine: Engine, tree: Path) -> str:
    """`cpu` without an encoder."""
    return build(engine, tree, "cpu", "-bare", "--build-arg ENCODER=") + ":cpu"
