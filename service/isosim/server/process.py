"""The server process: starts the app, watches the encoder, drains requests and stops."""

import logging
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import FrameType

import uvicorn

from isosim.api.state import Phase, Service
from isosim.observability import logs
from isosim.server import announcements
from isosim.server.app import create_app
from isosim.server.guard import CONNECTIONS, KEEP_ALIVE, Guard
from isosim.settings import Settings

log = logging.getLogger("isosim")
# Python's thread switch interval. It is short, so that the encoder's threads soon get the interpreter lock and the
# device does not idle.
SWITCH_SECONDS = 0.0005
# Files that a process opens besides those of its connections. Measured with Redis: 20 after the start, 54 while 32
# clients score, upload files and post calibrations at the same time.
OWN_FILES = 128


def possible_connections(wanted: int = CONNECTIONS) -> int:
    """The number of connections, at most `wanted`, for which the system allows enough open files; warns if it is less.

    Counts two files for each connection: its socket, and the file into which an upload is written. First raises the
    limit of open files to the maximum, because the usual limit of 1,024 is low.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some systems refuse the maximum that they report
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    possible = wanted if files == resource.RLIM_INFINITY else max(1, (files - OWN_FILES) // 2)
    if possible >= wanted:
        return wanted
    log.warning(
        "at most %d connections are accepted, not %d, because the process may open only %d files; raise its limit to "
        "%d: ulimit -n, docker run --ulimit nofile=…, or LimitNOFILE= of systemd",
        possible,
        wanted,
        files,
        2 * wanted + OWN_FILES,
    )
    return possible


class Server(uvicorn.Server):
    """A uvicorn server that finishes requests before it stops, and that stops when its encoder's thread dies or hangs.

    After SIGTERM the server still answers requests for `drain_delay` seconds. It reports that it is not ready, and
    closes each connection after its answer. So load balancers and clients move to other servers. Then the server
    refuses new requests. Requests in flight have `drain_seconds` to finish. SIGINT or a second SIGTERM skips the delay.
    """

    def __init__(self, settings: Settings, guard: Guard | None = None) -> None:
        """`guard`: limits for connections; None: the defaults, with fewer connections if the system allows fewer."""
        self.settings = settings
        self.app = create_app(settings)
        config = uvicorn.Config(
            self.app,
            host=settings.host,
            port=settings.port,
            log_level=settings.log_level,
            log_config=None,
            access_log=False,
            server_header=False,
            http=self._watched(guard or Guard(max_connections=possible_connections())),  # type: ignore[arg-type]
            ws="none",  # no route uses WebSockets, and their library would log headers with keys at level debug
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=int(settings.drain_seconds),
        )
        super().__init__(config)
        self.failed = False  # True if the encoder's thread has died or hangs
        self._drained_at: float | None = None  # time.monotonic() at the end of `drain_delay`
        sys.setswitchinterval(SWITCH_SECONDS)

    def _watched(self, guard: Guard) -> Guard:
        """Counts in the metrics what the guard closes."""

        def closed(reason: str) -> None:
            if self.service is not None:
                self.service.metrics.observe_closed(reason)

        return replace(guard, on_closed=closed)

    @property
    def service(self) -> Service | None:
        """The server's parts; None before they are built and after they are stopped."""
        service: Service | None = getattr(self.app.state, "service", None)
        return service

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except SystemExit:  # uvicorn has logged the reason
            if not self.lifespan.should_exit:  # the app has started, but the server cannot listen
                log.error("cannot listen on port %s; choose another one: --port, or ISOSIM_PORT", self.config.port)
            raise
        if self.started and self.service is not None:
            self.service.metrics.connections.set_function(lambda: len(self.server_state.connections))
            _, port, *_ = self.servers[0].sockets[0].getsockname()  # the system's choice for port 0
            address = f"http://{self.config.host}:{port}"
            announcements.ready(address)
            if logs.structured():
                return  # programs read this log, so no hint is printed
            body = '{"pairs": [["A man is playing a guitar.", "Someone plays an instrument."]]}'
            print(f"ready on {address}; try:\n")
            print(f"curl -s {address}/similarity -H 'content-type: application/json' -d '{body}'\n", flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        observer = None if self.service is None else self.service.observer
        with announcements.stopping(observer, self.settings.drain_seconds):
            await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        with super().capture_signals():
            yield
            logs.flush()  # after this, uvicorn raises the signal again, and the process ends

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        serving = self.service is not None and self.service.phase is Phase.SERVING
        if sig == signal.SIGTERM and serving and self.settings.drain_delay:
            self._enter(Phase.DRAINING)
            self._drained_at = time.monotonic() + self.settings.drain_delay
            return
        self._enter(Phase.STOPPING)
        super().handle_exit(sig, frame)

    def _enter(self, phase: Phase) -> None:
        if self.service is not None:
            self.service.phase = phase

    async def on_tick(self, counter: int) -> bool:
        """Called by uvicorn every 0.1 s; returning True ends the server."""
        if self._drained_at is not None and time.monotonic() >= self._drained_at:
            self._drained_at = None
            self.handle_exit(signal.SIGTERM, None)
        if self.service is not None and not self.service.encoder.embedder.batcher.alive:
            log.critical("the encoder's thread has died or hangs; the process exits, so that it can be restarted")
            self._enter(Phase.STOPPING)
            self.failed = self.should_exit = True
        return await super().on_tick(counter)
