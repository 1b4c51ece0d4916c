#!/usr/local/bin/python3
"""`isosim` in a container: what the image carries goes into the mounted model store, then the command itself runs.

It stands before the installed `isosim` on the path, so that `docker exec` and a pod's `command` find it as well.
"""

import json
import os
import signal
import sys
from collections.abc import MutableMapping
from pathlib import Path
from types import FrameType

CARRIED = Path("/opt/isosim/model_store")  # a store that `isosim export` filled when the image was built
EXPORTED = CARRIED / "exported.json"  # what it said of it
STOPPED = 128 + signal.SIGTERM


def stop(_: int, __: FrameType | None) -> None:
    sys.exit(STOPPED)


def carried_into(environment: MutableMapping[str, str]) -> None:
    """Seeds the store, and names what the image carries as the encoder where none is set: by its digest, so that an
    image serves what it was built with whatever else the store holds. What cannot be seeded is said and stops no
    command: a server whose encoder the store lacks says so itself, and any other serves what is there."""
    from service.adapters.seeding import seed  # noqa: PLC0415 - help needs none of it
    from service.commands.terminal import complain  # noqa: PLC0415
    from service.settings import Settings  # noqa: PLC0415

    def failed(error: Exception) -> None:
        complain(f"the model store was not given all that this image carries: {error}")

    for artifact in seed(CARRIED, Settings().model_store, failed):
        print(f"encoder {artifact.id} ({artifact.digest[:12]}) put into the model store", file=sys.stderr, flush=True)
    exported = json.loads(EXPORTED.read_bytes())
    environment.setdefault("ISOSIM_ENCODER", f"{exported['id']}@{exported['digest']}")


def main() -> None:
    # The first process of a container has no default action for a signal: until the command listens for it, a stop
    # would have to wait for SIGKILL.
    signal.signal(signal.SIGTERM, stop)
    from service.cli import main as isosim  # noqa: PLC0415 - after the signal
    from service.commands.terminal import ended  # noqa: PLC0415

    command = next(iter(sys.argv[1:]), "--help")
    if EXPORTED.is_file() and not command.startswith("-") and (code := ended(lambda: carried_into(os.environ))):
        sys.exit(code)
    if command == "serve":
        import service.server.app  # noqa: F401, PLC0415 - the seconds before it listens

        # uvicorn raises the signal again once it has drained, and has to find what it found.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    isosim()


if __name__ == "__main__":
    main()
