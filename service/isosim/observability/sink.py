"""Writes log lines to a file descriptor, directly or through a queue that a slow or stopped reader cannot block."""

import contextlib
import os
import select
import threading
import time
from collections import deque

CAPACITY = 4 * 2**20  # bytes in the queue, about 10,000 lines
# Maximum number of bytes in one write. A pipe may mix the parts of a longer write with lines of other processes.
PIECE = select.PIPE_BUF
PAUSE = 0.02  # seconds that the writer waits for more lines, so that it wakes at most 50 times a second


class DirectSink:
    """Writes lines at once, for a process that may wait for the reader of its log."""

    dropped = 0

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def write(self, line: bytes) -> None:
        with contextlib.suppress(OSError):  # the log cannot be written, so the error cannot be logged
            os.write(self.fd, line)

    def close(self, seconds: float = 0.0) -> None:
        pass


class QueuedSink:
    """Writes lines in a thread; lines that do not fit into the queue are dropped and counted."""

    def __init__(self, fd: int, capacity: int = CAPACITY) -> None:
        self.fd, self.capacity = fd, capacity
        self.dropped = 0  # number of dropped lines
        self._lines: deque[bytes] = deque()
        self._held = 0  # bytes queued or being written
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def write(self, line: bytes) -> None:
        if self._closing and not self._thread.is_alive():
            self._write_late(line)
            return
        with self._lock:
            if self._held + len(line) > self.capacity:
                self.dropped += 1
                return
            self._held += len(line)
            self._lines.append(line)
        if not self._wake.is_set():
            self._wake.set()

    def close(self, seconds: float = 1.0) -> None:
        """Writes the queued lines, for at most `seconds`. When the thread has ended, lines are written directly, or
        dropped if the pipe is full."""
        self._closing = True
        self._wake.set()
        self._thread.join(seconds)

    def _write_late(self, line: bytes) -> None:
        writable = select.select([], [self.fd], [], 0.0)[1]
        if not writable or not written(self.fd, line):
            self.dropped += 1

    def _run(self) -> None:
        closing = False
        while not closing:
            self._wake.wait()
            # `_wake` is cleared before the pause. If `write` or `close` sets it during the pause, the next round of
            # this loop begins without waiting.
            self._wake.clear()
            if not self._closing:
                time.sleep(PAUSE)
            closing = self._closing
            self._drain()

    def _drain(self) -> None:
        while True:
            piece, count = self._next()
            if not piece:
                return
            if not written(self.fd, piece):
                self.dropped += count
            with self._lock:
                self._held -= len(piece)

    def _next(self) -> tuple[bytes, int]:
        """As many queued lines as fit into PIECE bytes, and the number of these lines."""
        lines: list[bytes] = []
        size = 0
        with self._lock:
            while self._lines and (not lines or size + len(self._lines[0]) <= PIECE):
                lines.append(self._lines.popleft())
                size += len(lines[-1])
        return b"".join(lines), len(lines)


def written(fd: int, data: bytes) -> bool:
    """Writes all of the data; False if the other end is closed or the write fails."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # fd's buffer is full, and another process has made fd non-blocking
            select.select([], [fd], [])
        except OSError:
            return False
    return True
