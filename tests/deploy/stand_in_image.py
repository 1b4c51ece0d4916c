"""The API's image where there is no Dockerfile: this interpreter, the serving packages, this checkout.

To be deleted with the branch that brings the Dockerfile; `api_image` in test_pod.py then takes what that builds.
"""

import contextlib
import importlib.metadata
import os
import re
import shutil
import sys
import sysconfig
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from tests.deploy.chart import ROOT
from tests.deploy.rootfs import add_libraries, add_skeleton

USER = 10001
LEFT_OUT = shutil.ignore_patterns("test", "tests", "__pycache__", "site-packages", "idlelib", "config-3*", "ensurepip")
ENTRY = "#!/usr/local/bin/python\nfrom service.cli import main\nmain()\n"


def requires(name: str) -> list[str]:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # of another system
        return importlib.metadata.requires(name) or []
    return []


def needed(requirement: str, found: set[str]) -> set[str]:
    """Names of a distribution and of all that it needs, as installed here."""
    wanted = Requirement(requirement)
    name = re.sub(r"[-_.]+", "-", wanted.name).lower()
    if name not in found or wanted.extras:
        found.add(name)
        for extra in ("", *wanted.extras):
            for line in requires(wanted.name):
                marker = Requirement(line).marker
                if marker is None or marker.evaluate({"extra": extra}):
                    needed(line.split(";")[0], found)
    return found


def build(root: Path) -> None:
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    library = root / "usr/local/lib" / stdlib.name
    packages = library / "site-packages"
    shutil.copytree(stdlib, library, ignore=LEFT_OUT)
    packages.mkdir()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: set[str] = set()
    for line in (*project["dependencies"], *project["optional-dependencies"]["cpu"]):
        needed(line, found)
    files = [file for name in found for d in importlib.metadata.distributions(name=name) for file in d.files or ()]
    for file in files:
        if ".." not in file.parts and "__pycache__" not in file.parts:
            (packages / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file.locate(), packages / file)
    shutil.copytree(ROOT / "service", packages / "service", ignore=LEFT_OUT)
    (packages / "isosim.dist-info").mkdir()
    version = f"Metadata-Version: 2.1\nName: isosim\nVersion: {project['version']}\n"
    (packages / "isosim.dist-info" / "METADATA").write_text(version)
    commands = root / "usr/local/bin"
    commands.mkdir()
    shutil.copy(Path(sys.executable).resolve(), commands / "python")
    (commands / "isosim").write_text(ENTRY)
    (commands / "isosim").chmod(0o755)
    add_skeleton(root)
    (root / "model_store").mkdir()
    os.chown(root / "model_store", USER, USER)
    add_libraries(root, [commands / "python", *library.rglob("*.so"), *library.rglob("*.so.*")])
