"""The encoder and the version for nodes that do not see the model store."""

import os
import tempfile
from pathlib import Path
from typing import Any

from service.adapters.domains.store import DomainStore
from service.adapters.encoder.store import JOINED, EncoderStore
from service.adapters.storage.object_storage import remote

Files = dict[str, bytes]


def pack(store: Path, encoder: str, digest: str, domain: str, version: int) -> Files:
    """The files of the store that an engine reads, by path; `default@0` has none."""
    folders = [EncoderStore(store).find(f"{encoder}@{digest}").folder]
    if version:
        folders.append(store / "domains" / DomainStore(store).checked(domain) / str(version))
    files = [file for folder in folders for file in folder.iterdir() if file.name != JOINED]
    return {str(file.relative_to(store)): file.read_bytes() for file in files}


def store_here(store: Path, encoder: str, digest: str, version: str, shipped: Any) -> Path:
    """The store's place where this node sees the encoder there, else a copy of its own, made once a node.

    `version` is the domain's, as domain-number. `shipped` holds a reference to packed files in Ray's object store;
    None where nothing was shipped.
    """
    if shipped is None or remote(store) or (store / "encoders" / encoder / digest / "manifest.json").is_file():
        return store
    import ray  # noqa: PLC0415 - a worker has it

    place = Path(tempfile.gettempdir()) / f"isosim-{os.getuid()}-{digest[:16]}-{version}"
    if place.is_dir() and place.stat().st_uid == os.getuid():
        return place
    making = Path(tempfile.mkdtemp(prefix="isosim-"))
    for name, content in ray.get(shipped[0]).items():
        (making / name).parent.mkdir(parents=True, exist_ok=True)
        (making / name).write_bytes(content)
    try:
        making.rename(place)
    except OSError:  # another engine of this node was faster, or another user has the name
        return making
    return place
