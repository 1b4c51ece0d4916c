#!/usr/local/bin/python3
"""`isosim` in a container: makes the mounted volume a model store, copies the image's encoder, runs the command.

This script comes before the installed `isosim` on PATH, so `docker exec` and a pod's `command` run it too.
"""

import json
import os
import signal
import sys
from collections.abc import MutableMapping
from pathlib import Path
from types import FrameType

CARRIED = Path("/opt/isosim/model_store")  # a store that `isosim export` filled when the image was built
EXPORTED = CARRIED / "exported.json"  # output of `isosim export`: the encoder's id and digest
STOPPED = 128 + signal.SIGTERM


def stop(_: int, __: FrameType | None) -> None:
    sys.exit(STOPPED)


def prepare(environment: MutableMapping[str, str]) -> None:
    """Makes the mounted volume or the bucket a model store if it is none, then copies the image's encoder into it.

    A deployment mounts its store, so an empty volume is a new store here. That a full one was expected is told by
    `isosim_servable_domains` and its alert.
    """
    from isosim.commands.terminal import complain  # noqa: PLC0415
    from isosim.errors import IsosimError  # noqa: PLC0415
    from isosim.settings import Settings  # noqa: PLC0415
    from isosim.store.identity import create  # noqa: PLC0415 - `--help` does not need it

    try:
        create(Settings().model_store)
    except (IsosimError, OSError) as error:  # the command still runs, and says whether it needs the store
        complain(f"could not write store.json into the model store: {error}")
    if EXPORTED.is_file():
        carried_into(environment)


def carried_into(environment: MutableMapping[str, str]) -> None:
    """Copies the image's encoder into the model store. Sets ISOSIM_ENCODER to this encoder, if the variable is not set.

    ISOSIM_ENCODER contains the encoder's digest, because the store may have another encoder of the same name. If
    copying fails, the error is printed and the command still runs.
    """
    from isosim.commands.terminal import complain  # noqa: PLC0415
    from isosim.domains.seeding import seed  # noqa: PLC0415 - `--help` does not need it
    from isosim.settings import Settings  # noqa: PLC0415

    def failed(error: Exception) -> None:
        complain(f"could not copy an encoder or calibration of this image into the model store: {error}")

    for artifact in seed(CARRIED, Settings().model_store, failed):
        print(f"encoder {artifact.id} ({artifact.digest[:12]}) put into the model store", file=sys.stderr, flush=True)
    exported = json.loads(EXPORTED.read_bytes())
    environment.setdefault("ISOSIM_ENCODER", f"{exported['id']}@{exported['digest']}")


def main() -> None:
    # The kernel ignores SIGTERM for a container's first process if the process has no handler. Without this handler, a
    # container that is stopped during start-up would run until SIGKILL.
    signal.signal(signal.SIGTERM, stop)
    from isosim.cli import main as run  # noqa: PLC0415 - after the signal
    from isosim.commands.terminal import ended  # noqa: PLC0415

    command = next(iter(sys.argv[1:]), "--help")
    if not command.startswith("-") and (code := ended(lambda: prepare(os.environ))):
        sys.exit(code)
    if command == "serve":
        # During the import, SIGTERM calls `os._exit` instead of `stop`. An extension module may turn the SystemExit of
        # `stop` into another error. `os._exit` runs no cleanup; there is nothing to clean up yet.
        signal.signal(signal.SIGTERM, lambda _, __: os._exit(STOPPED))
        import isosim.server.app  # noqa: F401, PLC0415 - takes seconds: import it while SIGTERM is handled

        # uvicorn saves the current handler when it starts. After SIGTERM it finishes open requests, restores the saved
        # handler and raises SIGTERM again. With the default handler, SIGTERM then ends the process.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    run()


if __name__ == "__main__":
    main()
