"""`store.json` marks a model store and holds its id. Only an export and `isosim store init` write it into a place that
has none. So a mistyped address is refused, and not filled."""

import contextlib
import uuid

from isosim.errors import Unavailable
from isosim.store.artifacts import json_bytes, parsed
from isosim.store.blobs import MARKER, Blobs, Changed

FORMAT = 1


def create(blobs: Blobs) -> str:
    """Makes the place a model store, if it is none yet, and returns the store's id.

    Raises:
        CorruptArtifact: `store.json` cannot be read.
        OSError: the place cannot be written.
    """
    found = _marked(blobs)
    if found is None:
        with contextlib.suppress(Changed):  # another process has just made the store
            blobs.write(MARKER, json_bytes({"id": str(uuid.uuid4()), "format": FORMAT}), new=True)
        found = _marked(blobs)
    return str(found)


def identify(blobs: Blobs) -> str | None:
    """The id of an existing store. A store without `store.json` that has encoders is given one. None if that fails, for
    example on a read-only volume.

    Raises:
        Unavailable: there is no store.
        CorruptArtifact: `store.json` cannot be read.
        OSError: object storage does not answer.
    """
    found = _marked(blobs)
    if found is None:
        if next(iter(blobs.list("encoders/")), None) is None:
            raise Unavailable(
                f"no model store at {blobs.address}: correct --model-store or ISOSIM_MODEL_STORE, ask a running "
                "server (--server URL), or make a store there: isosim export, or isosim store init"
            )
        with contextlib.suppress(OSError):
            found = create(blobs)
    return found


def _marked(blobs: Blobs) -> str | None:
    """The id in `store.json`; None if there is no such file."""
    place = f"{MARKER} of {blobs.address}"
    try:
        content, _ = blobs.read(MARKER)
    except (FileNotFoundError, NotADirectoryError):
        return None
    facts = parsed(content, place)
    if facts.get("format") != FORMAT:
        raise Unavailable(f"{place} has format {facts.get('format')!r}; this release reads format {FORMAT}")
    return str(facts.get("id"))
