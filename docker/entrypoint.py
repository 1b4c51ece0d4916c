#!/usr/local/bin/python3
"""`isosim` in a container: chooses the encoder that the image carries, and runs the command.

This script comes before the installed `isosim` on PATH, so `docker exec` and a pod's `command` run it too.
"""

import json
import os
import signal
import sys
from collections.abc import MutableMapping
from pathlib import Path
from types import FrameType

STOPPED = 128 + signal.SIGTERM


def stop(_: int, __: FrameType | None) -> None:
    sys.exit(STOPPED)


def choose_encoder(environment: MutableMapping[str, str]) -> None:
    """Sets ISOSIM_ENCODER to the encoder of the image's store, if the variable is not set. It contains the encoder's
    digest, because the model store may have another encoder of the same name."""
    exported = Path(environment.get("ISOSIM_SEED_STORE", ""), "exported.json")  # output of `isosim export`
    if exported.is_file():
        encoder = json.loads(exported.read_bytes())
        environment.setdefault("ISOSIM_ENCODER", f"{encoder['id']}@{encoder['digest']}")


def main() -> None:
    # The kernel ignores SIGTERM for a container's first process if the process has no handler. Without this handler, a
    # container that is stopped during start-up would run until SIGKILL.
    signal.signal(signal.SIGTERM, stop)
    from isosim.cli import main as run  # noqa: PLC0415 - after the signal

    choose_encoder(os.environ)
    if sys.argv[1:2] == ["serve"]:
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
