"""Root file systems for images, out of what is installed here: programs, and the libraries that they load."""

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path


def add_libraries(root: Path, binaries: Iterable[Path]) -> None:
    """What the loader finds for them on this machine, to the same places."""
    done = subprocess.run(["ldd", *binaries], capture_output=True, text=True, check=False)
    for path in {Path(line) for line in re.findall(r"(/\S+\.so\S*) \(0x", done.stdout)}:
        if not path.is_relative_to(root):
            place = root / path.relative_to("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place)


def add_skeleton(root: Path) -> None:
    for folder in ("dev", "etc", "proc", "run", "sys", "tmp"):
        (root / folder).mkdir(exist_ok=True)
    (root / "tmp").chmod(0o1777)
    (root / "etc" / "passwd").write_text("root:x:0:0::/:/\n")


def of_programs(root: Path, *names: str) -> None:
    folder = root / "usr" / "local" / "bin"
    folder.mkdir(parents=True)
    for name in names:
        found = shutil.which(name)
        assert found, f"{name} is missing; make test-all installs it"
        shutil.copy(found, folder / name)
    add_skeleton(root)
    add_libraries(root, folder.iterdir())
