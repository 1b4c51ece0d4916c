"""A line between two processes that can be slow, silent or cut, and can change what is answered."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Line:
    """A TCP proxy to a port of this machine; a context manager."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.delay = 0.0  # s an answer takes longer
        self.silent = False  # nothing gets through, and nobody is told
        self.garble: Callable[[bytes], bytes] | None = None  # makes other answers of the answers
        self._cut = self._ended = False
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> "Line":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self.hang_up()
        self._listener.close()

    def hang_up(self) -> None:
        """Ends all connections."""
        for end in list(self._open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def cut(self) -> Iterator[None]:
        """All connections end, and new ones at once."""
        self._cut = True
        self.hang_up()
        yield
        self._cut = False

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Everything is taken and nothing passed on; what was held comes late."""
        self.silent = True
        yield
        self.silent = False

    @contextmanager
    def slowness(self, seconds: float) -> Iterator[None]:
        self.delay = seconds
        yield
        self.delay = 0.0

    @contextmanager
    def garbled(self, garble: Callable[[bytes], bytes]) -> Iterator[None]:
        self.garble = garble
        yield
        self.garble = None
        self.hang_up()

    def _accept(self) -> None:
        while not self._ended:
            try:
                near, _ = self._listener.accept()
                if self._cut:
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self.target), 5)
            except OSError:  # the line has ended, or nobody is there: a refused connection is a closed one
                if not self._ended:
                    near.close()
                continue
            far.settimeout(None)
            self._open |= {near, far}
            for source, sink, answers in ((near, far, False), (far, near, True)):
                threading.Thread(target=self._carry, args=(source, sink, answers), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 20):
                if answers and self.delay:
                    time.sleep(self.delay)
                while self.silent and not self._ended:
                    time.sleep(0.005)
                sink.sendall(self.garble(data) if answers and self.garble else data)
        for end in (source, sink):
            self._open.discard(end)
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        source.close()
