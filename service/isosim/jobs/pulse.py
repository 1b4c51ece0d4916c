"""Signs of life of workers: each touches a file, so that a hung one can be found and restarted."""

import contextlib
import os
import tempfile
import time
from pathlib import Path

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
                self._file.write_text(f"{now}\n")  # this clock is the same for all processes of a machine

    def close(self) -> None:
        self._file.unlink(missing_ok=True)


def pulses() -> Path:
    return Path(tempfile.gettempdir()) / f"isosim-workers-{os.getuid()}"


def silences() -> dict[int, float]:
    """Seconds since the last sign of life of each of this user's workers on this machine, by process id."""
    found = {}
    for file in pulses().glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            os.kill(int(file.name), 0)  # raises ProcessLookupError, an OSError, if the worker has ended
            found[int(file.name)] = time.monotonic() - float(file.read_text())
    return found
