"""`store.json` marks a model store and holds its id. Only what creates stores writes into a place without one: an
export, `isosim store init`, and the image's entry point. So a mistyped address is refused, and not filled."""

import contextlib
import uuid
from pathlib import Path

from isosim.errors import Unavailable
from isosim.store.artifacts import json_bytes, locked, parsed, write_atomically
from isosim.store.object_storage import PreconditionFailed, address, opened, remote

MARKER = "store.json"
FORMAT = 1


def create(root: Path) -> str:
    """Makes the place a model store, if it is none yet, and returns the store's id.

    Raises:
        CorruptArtifact: `store.json` cannot be read.
        OSError: the place cannot be written.
    """
    found = _marked(root)
    if found is not None:
        return found
    content = json_bytes({"id": str(uuid.uuid4()), "format": FORMAT})
    if remote(root):
        with contextlib.suppress(PreconditionFailed):  # another process has just made the store
            opened(root).write(MARKER, content, new=True)
    else:
        lock = root / ".creating"
        with locked(lock):
            if not (root / MARKER).exists():
                write_atomically(root / MARKER, content)
            lock.unlink(missing_ok=True)  # a process that waits for this lock finds the marker
    return str(_marked(root))


def identify(root: Path) -> str | None:
    """The id of an existing store. A store without `store.json` that has encoders is given one. None if that fails, for
    example on a read-only volume.

    Raises:
        Unavailable: there is no store.
        CorruptArtifact: `store.json` cannot be read.
        OSError: object storage does not answer.
    """
    found = _marked(root)
    if found is None:
        if not _has_encoders(root):
            raise Unavailable(
                f"no model store at {address(root) if remote(root) else root}: correct --model-store or "
                "ISOSIM_MODEL_STORE, or make a store there: isosim export, or isosim store init"
            )
        with contextlib.suppress(OSError):
            found = create(root)
    return found


def _marked(root: Path) -> str | None:
    """The id in `store.json`; None if there is no such file."""
    place = f"{MARKER} of {address(root) if remote(root) else root}"
    try:
        content = opened(root).read(MARKER)[0] if remote(root) else (root / MARKER).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    facts = parsed(content, place)
    if facts.get("format") != FORMAT:
        raise Unavailable(f"{place} has format {facts.get('format')!r}; this release reads format {FORMAT}")
    return str(facts.get("id"))


def _has_encoders(root: Path) -> bool:
    if remote(root):
        return next(opened(root).list("encoders/"), None) is not None
    return (root / "encoders").is_dir()
