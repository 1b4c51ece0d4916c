"""Processes that tests start: servers, workers, a Redis; and how to wait for them."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import httpx
import pytest

from tests import forks
from tests.text import sentences

PAIRS = [["A farmer repairs a wooden boat.", "The pilot admires the garden gate."], sentences(2)]


def skip_without(what: str) -> NoReturn:
    """Skips a test for which something is missing here, or fails it where ISOSIM_REQUIRE_ALL=1 says it has to run."""
    if os.environ.get("ISOSIM_REQUIRE_ALL") == "1":
        pytest.fail(what)
    pytest.skip(what)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def wait_until(condition: Callable[[], Any], seconds: float = 30.0, every: float = 0.05) -> Any:
    """The condition's first true value.

    Raises:
        AssertionError: the time is over. Or, at once and with the end of its log: a `Process` ended although no test
            ended it, or the condition asks a server that has ended.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        asked = None
        try:
            if value := condition():
                return value
        except httpx.TransportError as error:
            asked = error.request.url.port
        fail_if_ended(asked)
        time.sleep(every)
    raise AssertionError(f"{condition} was not met within {seconds} s")


def fail_if_ended(asked: int | None = None) -> None:
    """Fails once for each process that ended by itself, and always for the one that listened on the port `asked`."""
    for process in PROCESSES:
        code = process.popen.poll()
        if code is not None and (not process.may_end or (asked is not None and process.port == asked)):
            process.may_end = True
            end = process.log.read_text(errors="replace")[-4000:]
            raise AssertionError(f"{process.popen.args} ended with exit code {code} while a test waited:\n{end}")


@dataclass(eq=False)
class Process:
    """A command in a process of its own that runs until a test ends it."""

    popen: forks.Started
    log: Path
    may_end: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        PROCESSES[:] = [other for other in PROCESSES if other.port is None or other.port != self.port]
        PROCESSES.append(self)

    @property
    def port(self) -> int | None:
        return None

    def kill(self) -> None:
        self.may_end = True
        if self.popen.poll() is None:  # one that has ended may have left its number to another
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.popen.terminate()
        return self.wait()

    def wait(self, seconds: float = 30) -> int:
        """The exit code of a process that was told to end."""
        self.may_end = True
        return self.popen.wait(timeout=seconds)


PROCESSES: list["Process"] = []


@dataclass(eq=False)
class Server(Process):
    url: str = ""
    client: httpx.Client = field(default_factory=httpx.Client)

    @property
    def port(self) -> int | None:
        return httpx.URL(self.url).port

    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.popen.pid}/status").read_text()
        return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))

    def calibrate(self, domain: str, texts: list[str], **options: Any) -> dict[str, Any]:
        """Posts a calibration and waits for its end."""
        response = self.client.post("/calibrate", json={"domain": domain, "texts": texts, **options})
        assert response.status_code == 202, response.text
        return self.wait_for(response.json()["job"])

    def wait_for(self, job: str, seconds: float = 1200.0) -> dict[str, Any]:
        def ended() -> Any:
            state = self.client.get(f"/calibrate/{job}").json()
            return state if state["status"] not in ("queued", "running", "publishing") else None

        found: dict[str, Any] = wait_until(ended, seconds)
        return found


Serve = Callable[..., Server]


def environment(**settings: Any) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("ISOSIM_")}
    return clean | {f"ISOSIM_{k.upper()}": str(v) for k, v in settings.items()}


def start(command: list[str], log: Path, **settings: Any) -> forks.Started:
    with log.open("ab") as file:
        return forks.start(command, environment(**settings), file)


def command(*words: object, stdin: str | bytes = "", **settings: Any) -> "subprocess.CompletedProcess[str]":
    """`isosim …` in a process of its own, to its end; its standard input is a pipe with bytes or text."""
    given = stdin if isinstance(stdin, bytes) else stdin.encode()
    code, out, err = forks.run(words, environment(**settings), given, 120)
    assert b"Traceback" not in err, err.decode()
    return subprocess.CompletedProcess([*map(str, words)], code, out.decode(), err.decode())


def serve_with(folder: Path, running: list[Process], *, port: int | None = None, **settings: Any) -> Server:
    port = port or free_port()
    log = folder / f"serve-{port}.log"
    url = f"http://127.0.0.1:{port}"
    server = Server(start(["serve"], log, port=port, **settings), log, url, httpx.Client(base_url=url, timeout=60))
    running.append(server)

    wait_until(lambda: httpx.get(url + "/readyz").status_code == 200, 120)  # one that ends is noticed at once
    return server


@dataclass
class RedisServer:
    """A real redis-server on a port of its own, that can be killed and started again."""

    folder: Path
    port: int = field(default_factory=free_port)
    process: Process | None = None
    address: str = "127.0.0.1"
    inside: tuple[str, ...] = ()  # the beginning of a command that runs it elsewhere: in a network namespace

    @property
    def url(self) -> str:
        return f"redis://{self.address}:{self.port}/0"

    def options(self) -> list[str]:
        """How it listens, and to whom."""
        return ["--port", str(self.port), "--bind", self.address, "--protected-mode", "no"]

    def start(self) -> None:
        binary = shutil.which("redis-server")
        assert binary, "redis-server is missing; make test installs it"
        log = self.folder / f"redis-{self.port}.log"
        with log.open("wb") as file:
            popen = subprocess.Popen(
                [*self.inside, binary, *self.options(), "--save", "", "--dir", str(self.folder)],
                stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self.process = Process(popen, log)
        # Another Redis might answer on its port: it says itself that it listens.
        wait_until(lambda: "Ready to accept connections" in log.read_text() and self.answers())

    @property
    def popen(self) -> "forks.Started | None":
        return None if self.process is None else self.process.popen

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """It takes connections and answers nothing."""
        assert self.popen is not None
        os.kill(self.popen.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.popen.pid, signal.SIGCONT)

    def answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((self.address, self.port), 0.2) as s:
            s.sendall(b"PING\r\n")
            return s.recv(16).startswith(b"+PONG")
        return False

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()


def score(server: Server, domain: str) -> httpx.Response:
    response = server.client.post("/similarity", json={"pairs": PAIRS, "domain": domain})
    assert response.status_code == 200, response.text
    return response
