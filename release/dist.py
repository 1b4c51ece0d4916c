"""Wheels and source distributions of service and client: `make dist` puts them into dist/.

They are built from a copy of the files that git knows, so that nothing else gets in: not what an earlier build or
another branch left. Without a network: setuptools is the environment's own.

    python release/dist.py [FOLDER]
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = (".", "clients/python")
BUILD = "from setuptools import build_meta; build_meta.build_sdist({0!r}); build_meta.build_wheel({0!r})"


def main() -> None:
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "dist").absolute()
    target.mkdir(parents=True, exist_ok=True)
    for old in [*target.glob("isosim*.whl"), *target.glob("isosim*.tar.gz")]:
        old.unlink()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
        names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout  # noqa: S603
        for name in filter(lambda name: (ROOT / name).is_file(), names.split("\0")):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
        for source in SOURCES:
            built = subprocess.run(  # noqa: S603 - our own interpreter
                [sys.executable, "-c", BUILD.format(str(target))],
                cwd=tree / source, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": ""},
            )  # fmt: skip
            if built.returncode:
                sys.exit(f"{source} could not be built:\n{built.stdout[-2000:]}{built.stderr[-4000:]}")
    for made in sorted(target.glob("isosim*")):
        print(made)


if __name__ == "__main__":
    main()
