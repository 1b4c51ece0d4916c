"""Signs of life of workers: each touches a file, so that a hung one can be found and restarted."""

import contextlib
import os
import tempfile
import time
from pathlib import Path
from typing import TextIO

PULSE = 2.0  # s between signs of life
HUNG = 180.0  # s without one until a worker counts as hung; a call of object storage may take more than a minute


class Pulse:
    """The signs of life of this process."""

    def __init__(self) -> None:
        self._file = pulses() / str(os.getpid())
        self._written = -PULSE

    def __call__(self) -> None:
        now = time.monotonic()
        if now - self._written >= PULSE:
            self._written = now
            with contextlib.suppress(OSError):  # a full disk is no reason to end
                self._file.parent.mkdir(mode=0o700, exist_ok=True)
                with open_own(self._file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
                    file.write(f"{now}\n")  # this clock is the same for all processes of a machine

    def close(self) -> None:
        self._file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # other workers are in it
            self._file.parent.rmdir()


def open_own(file: Path, flags: int) -> TextIO:
    """Opens a file in a folder that anybody could have made. Raises OSError unless the folder is this user's and, like
    the file, no link."""
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(folder).st_uid != os.getuid():
            raise PermissionError(f"{file.parent} belongs to another user")
        return os.fdopen(os.open(file.name, flags | os.O_NOFOLLOW, 0o600, dir_fd=folder), "w" if flags else "r")
    finally:
        os.close(folder)


def pulses() -> Path:
    return Path(tempfile.gettempdir()) / f"isosim-workers-{os.getuid()}"


def silences() -> dict[int, float]:
    """Seconds since the last sign of life of each of this user's workers on this machine, by process id."""
    found = {}
    for file in pulses().glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            os.kill(int(file.name), 0)  # raises ProcessLookupError, an OSError, if the worker has ended
            with open_own(file, os.O_RDONLY) as opened:
                found[int(file.name)] = time.monotonic() - float(opened.read())
    return found
