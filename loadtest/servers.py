"""Starts servers under test as separate processes: the service, a bare FastAPI route, infinity, Redis."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

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
    """Waits until the response to the request begins with `answer`.

    Raises:
        RuntimeError: the process ended or took too long; the message contains the end of its log.
    """
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
def serving(command: list[str], port: int, path: str, environment: dict[str, str]) -> Iterator[Server]:
    with tempfile.NamedTemporaryFile(suffix=".log") as file:
        log = Path(file.name)
        started = time.monotonic()
        with process(command, environment, log) as child:
            request = f"GET {path} HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n".encode()
            wait_for(port, request, b"HTTP/1.1 200", child, log)
            yield Server(port, child.pid, time.monotonic() - started)


@contextmanager
def isosim(
    store: Path,
    encoder: str,
    module: str = "isosim.cli",
    *,
    environment: Mapping[str, str] | None = None,
    **settings: object,
) -> Iterator[Server]:
    """Runs the service as `isosim serve` does, with default settings except the given ones.

    Args:
        module: module to run instead of `isosim.cli`.
        environment: more environment variables.
    """
    port = free_port()
    given = {"model_store": store, "encoder": encoder, "port": port, "log_level": "warning"} | settings
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ISOSIM_")}
    variables = (
        clean | {f"ISOSIM_{name.upper()}": str(value) for name, value in given.items()} | dict(environment or {})
    )
    with serving([sys.executable, "-m", module, "serve"], port, "/readyz", variables) as server:
        yield server


@contextmanager
def bare_route() -> Iterator[Server]:
    """Runs `bare_route.py`."""
    with app("loadtest.bare_route:app") as server:
        yield server


@contextmanager
def waiting_embeddings() -> Iterator[Server]:
    """Runs `waiting_embeddings.py`."""
    with app("loadtest.waiting_embeddings:app") as server:
        yield server


@contextmanager
def app(place: str) -> Iterator[Server]:
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", place, "--port", str(port), "--no-access-log"]
    with serving([*command, "--log-level", "warning"], port, "/livez", dict(os.environ)) as server:
        yield server


@contextmanager
def infinity(binary: Path, model: Path, engine: str) -> Iterator[Server]:
    """Runs infinity-emb with the model in a folder; `engine` is `torch` or `optimum` (ONNX Runtime)."""
    port = free_port()
    options = ["--model-id", str(model), "--engine", engine, "--port", str(port), "--device", "cpu"]
    command = [str(binary), "v2", *options, "--no-bettertransformer", "--log-level", "warning"]
    environment = dict(os.environ) | {"DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"}
    with serving(command, port, "/health", environment) as server:
        yield server


@contextmanager
def redis() -> Iterator[str]:
    """Runs a Redis in memory; yields its URL."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = ["redis-server", "--port", str(port), "--save", "", "--dir", folder]
        with process(command, dict(os.environ), Path(folder) / "log") as child:
            wait_for(port, b"PING\r\n", b"+PONG", child, Path(folder) / "log")
            yield f"redis://127.0.0.1:{port}/0"


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
