"""Starts servers under test as separate processes: the service, a worker, a bare FastAPI route, infinity, Redis."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[1]
READY = 180.0  # maximum seconds until a server is ready


@dataclass
class Server:
    """A running server: its port, its process, and how long it took to start."""

    port: int
    pid: int
    ready: float = 0.0  # seconds from start to the first answer with status 200

    def processor_seconds(self) -> float:
        """Processor seconds of the process since its start."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident(self) -> int:
        """Resident bytes of the process."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """JSON of the answer to a request that is not part of a load. Raises an error if its status is one."""
        answer = httpx.request(method, f"http://127.0.0.1:{self.port}{path}", json=body, timeout=60)
        return answer.raise_for_status().json()

    def ended(self, job: str) -> str:
        """Waits until a job has ended; returns its status."""
        while (status := self.ask("GET", f"/calibrate/{job}")["status"]) in {"queued", "running", "publishing"}:
            time.sleep(0.1)
        return str(status)

    def calibrate(self, domain: str, sentences: list[str], method: str = "auto") -> None:
        """Calibrates a domain, and waits until it is done."""
        body = {"domain": domain, "texts": sentences, "method": method, "promote": "always"}
        status = self.ended(self.ask("POST", "/calibrate", body)["job"])
        if status != "succeeded":
            raise RuntimeError(f"the calibration of {domain} ended as {status}")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


@contextmanager
def process(command: list[str], environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a command in its own process group until the block ends."""
    with log.open("wb") as out:
        child = subprocess.Popen(  # noqa: S603 - commands of this file
            command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def wait_for(port: int, request: bytes, answer: bytes, child: subprocess.Popen[bytes], log: Path) -> None:
    """Waits until the response to the request begins with `answer`. An error contains the end of the log."""
    deadline = time.monotonic() + READY
    while time.monotonic() < deadline and child.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as connection:
            connection.settimeout(5)
            connection.sendall(request)
            if connection.recv(64).startswith(answer):
                return
        time.sleep(0.02)
    raise RuntimeError(f"{child.args!r} does not answer: {log.read_text()[-2000:]}")


@contextmanager
def serving(command: list[str], path: str, **environment: str) -> Iterator[Server]:
    """Runs a server on a free port, which replaces PORT in the command, until the block ends."""
    port = free_port()
    request, answer = f"GET {path} HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n".encode(), b"HTTP/1.1 200"
    if path == "PING":
        request, answer = b"PING\r\n", b"+PONG"
    with tempfile.NamedTemporaryFile(suffix=".log") as file:
        log, started = Path(file.name), time.monotonic()
        words = [str(port) if word == "PORT" else word for word in command]
        with process(words, inherited() | environment, log) as child:
            wait_for(port, request, answer, child, log)
            yield Server(port, child.pid, time.monotonic() - started)


def inherited(**settings: object) -> dict[str, str]:
    """This process's environment, with these settings of the service and no others."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ISOSIM_")}
    return kept | {f"ISOSIM_{name.upper()}": str(value) for name, value in settings.items()}


def isosim(store: Path, encoder: str, module: str = "isosim.cli", **settings: object) -> AbstractContextManager[Server]:
    """Runs the service as `isosim serve` does (`module` in place of `isosim.cli`), with default settings but these."""
    given = {"model_store": store, "encoder": encoder, "log_level": "warning"} | settings
    return serving([sys.executable, "-m", module, "serve", "--port", "PORT"], "/readyz", **inherited(**given))


@contextmanager
def own_isosim(store: Path, encoder: str, module: str = "isosim.cli", **settings: object) -> Iterator[Server]:
    """Runs the service with a copy of a store."""
    with own_store(store, encoder) as own, isosim(own, encoder, module, **settings) as server:
        yield server


@contextmanager
def worker(store: Path, redis_url: str) -> Iterator[None]:
    """Runs `isosim worker`."""
    command = [sys.executable, "-m", "isosim.cli", "worker"]
    environment = inherited(model_store=store, redis_url=redis_url)
    with tempfile.NamedTemporaryFile(suffix=".log") as log, process(command, environment, Path(log.name)):
        yield


def bare_route() -> AbstractContextManager[Server]:
    """Runs `bare_route.py`."""
    options = ["--port", "PORT", "--no-access-log", "--log-level", "warning"]
    return serving([sys.executable, "-m", "uvicorn", "loadtest.bare_route:app", *options], "/livez")


def infinity(binary: Path, model: Path, engine: str) -> AbstractContextManager[Server]:
    """Runs infinity-emb with the model in a folder; `engine` is `torch` or `optimum` (ONNX Runtime)."""
    options = ["--model-id", str(model), "--engine", engine, "--port", "PORT", "--device", "cpu"]
    command = [str(binary), "v2", *options, "--no-bettertransformer", "--log-level", "warning"]
    return serving(command, "/health", DO_NOT_TRACK="1", HF_HUB_OFFLINE="1", INFINITY_ANONYMOUS_USAGE_STATS="0")


@contextmanager
def redis() -> Iterator[str]:
    """Runs a Redis in memory; yields its URL."""
    with serving(["redis-server", "--port", "PORT", "--save", "", "--dir", tempfile.gettempdir()], "PING") as server:
        yield f"redis://127.0.0.1:{server.port}/0"


@contextmanager
def own_store(store: Path, encoder: str) -> Iterator[Path]:
    """A temporary model store with a link to the encoder and a copy of the `default` domain."""
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder)
        (own / "encoders").mkdir()
        (own / "encoders" / encoder).symlink_to((store / "encoders" / encoder).resolve())
        if (store / "domains" / "default.json").exists():
            (own / "domains").mkdir()
            shutil.copy(store / "domains" / "default.json", own / "domains")
            shutil.copytree(store / "versions" / "default", own / "versions" / "default")
        yield own


def multiply(store: Path, count: int, domain: str = "d0") -> None:
    """Makes domains d1, d2, … that are copies of a domain. Their files are links to its files."""
    for name in (f"d{number}" for number in range(1, count)):
        if not (record := store / "domains" / f"{name}.json").exists():
            shutil.copytree(store / "versions" / domain, store / "versions" / name, copy_function=os.link)
            shutil.copyfile(store / "domains" / f"{domain}.json", record)


@contextmanager
def paused(servers: list[Server]) -> Iterator[None]:
    """Suspends servers that are not measured, so that they use no processor time."""
    for server in servers:
        os.killpg(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for server in servers:
            os.killpg(server.pid, signal.SIGCONT)
