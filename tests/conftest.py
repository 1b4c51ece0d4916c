"""Real parts for the tests: a small BERT of our own, the default encoder, servers in their own processes, a Redis."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import httpx
import hypothesis
import pytest

from service.adapters.encoder.store import EncoderArtifact, EncoderStore
from tests.text import sentences

# An example that a busy machine held up says nothing about the property.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")


ROOT = Path(__file__).parents[1]
# What `make test` leaves out and `make test-all` runs: markers of pyproject.toml, given to whole folders and modules…
GROUPS = {
    "clients/python/tests/test_package.py": "deploy",
    "clients/python/tests/test_server.py": "operation",
    "tests/bulk/": "ray",
    "tests/deploy/": "deploy",
    "tests/docs/test_object_storage_page.py": "encoder",
    "tests/faults/": "faults",
    "tests/http/test_meaning.py": "calibration",
    "tests/http/test_migration.py": "calibration",
    "tests/modelling/test_architectures.py": "calibration",
    "tests/modelling/test_languages.py": "calibration",
    "tests/modelling/test_trained_encoders.py": "training",
    "tests/modelling/test_training.py": "training",
    "tests/observation/": "operation",
    "tests/security/test_connections.py": "operation",
    "tests/security/test_limits_of_keys.py": "operation",
    "tests/security/test_listings.py": "operation",
    "tests/security/test_posted_text.py": "operation",
    "tests/security/test_redis_tls.py": "operation",
    "tests/security/test_requests.py": "operation",
    "tests/security/test_secrets.py": "operation",
}
# … and to every test that needs one of these fixtures.
GROUP_OF_FIXTURE = {
    "balancer": "faults", "browser": "browser", "data": "encoder", "layer3_store": "encoder", "minilm_store": "encoder",
}  # fmt: skip


# What runs last and by itself where other tests run two at a time: it uses the whole machine, or measures times.
ALONE = (
    "tests/bulk/", "tests/console/", "tests/deploy/", "tests/faults/", "tests/http/test_lifecycle.py",
    "tests/http/test_process.py",
)  # fmt: skip


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Marks each test with its groups, before `-m` selects, and puts those that run alone behind the others."""
    for item in items:
        groups = {group for start, group in GROUPS.items() if place_of(item).startswith(start)}
        groups |= {group for name, group in GROUP_OF_FIXTURE.items() if name in getattr(item, "fixturenames", ())}
        for group in sorted(groups):
            item.add_marker(group)
    items.sort(key=lambda item: place_of(item).startswith(ALONE))
    return (yield)


def place_of(item: pytest.Item) -> str:
    return item.path.relative_to(ROOT).as_posix()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hands out whole files, and those that run alone as one: the other process has nothing to do by then."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return "alone" if file.startswith(ALONE) else file

    return Scheduling(config, log)


def skip_without(what: str) -> NoReturn:
    """Skips a test for which something is missing here, or fails it where ISOSIM_REQUIRE_ALL=1 says it has to run."""
    if os.environ.get("ISOSIM_REQUIRE_ALL") == "1":
        pytest.fail(what)
    pytest.skip(what)


@pytest.fixture(scope="session")
def data() -> Path:
    """The measuring data beside the clone."""
    folder = Path(os.environ.get("ISOSIM_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        skip_without(f"no measuring data in {folder} (ISOSIM_DATA)")
    return folder


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of four layers and 32 dimensions with random weights, and a real WordPiece tokenizer."""
    from tokenizers import BertWordPieceTokenizer

    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = BertWordPieceTokenizer(lowercase=True)
    tokenizer.train_from_iterator(sentences(1000), vocab_size=400, show_progress=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    save_bert(folder, seed=0, dim=32, layers=4)
    return folder


def save_bert(folder: Path, *, seed: int, dim: int, layers: int) -> None:
    """Random weights of a BERT for the tiny vocabulary."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=400, hidden_size=dim, num_hidden_layers=layers, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=64, initializer_range=0.2,
    )  # fmt: skip
    BertModel(config).eval().save_pretrained(folder)


@pytest.fixture(scope="session")
def tiny_store(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model store with the tiny encoder exported as `tiny`; copy it before writing to it."""
    return export(tmp_path_factory.mktemp("store"), "tiny", str(tiny_checkpoint), max_length=32)


@pytest.fixture(scope="session")
def tiny(tiny_store: Path) -> EncoderArtifact:
    return EncoderStore(tiny_store).find("tiny")


@pytest.fixture
def store(tiny_store: Path, tmp_path: Path) -> Path:
    """A store of the test's own with the tiny encoder in it."""
    shutil.copytree(tiny_store / "encoders", tmp_path / "store" / "encoders")
    return tmp_path / "store"


@pytest.fixture(scope="session")
def minilm_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model store with the default encoder and its shipped calibration."""
    return export(tmp_path_factory.mktemp("minilm"), "minilm", "minilm")


@pytest.fixture(scope="session")
def layer3_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model store with the third layer of the default encoder: raw and crowded."""
    return export(tmp_path_factory.mktemp("layer3"), "minilm-layers3-mean", "minilm", layers=3, pooling="mean")


def export(store: Path, name: str, source: str, **options: Any) -> Path:
    from service.modelling.encoder import checkpoints, encoder
    from service.modelling.store import export as write

    checkpoint = checkpoints.resolve(source)
    wanted = {"pooling": None, "layers": None, "max_length": None, "prompt": ""} | options
    write(store, name, checkpoint, encoder.describe(checkpoint, **wanted), lambda _: None)
    return store


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


PROCESSES: list["Process"] = []


@dataclass(eq=False)
class Process:
    """A command in a process of its own that runs until a test ends it."""

    popen: subprocess.Popen[bytes]
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
        with contextlib.suppress(ProcessLookupError):
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
            return state if state["status"] not in ("queued", "running") else None

        found: dict[str, Any] = wait_until(ended, seconds)
        return found


Serve = Callable[..., Server]


def environment(**settings: Any) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("ISOSIM_")}
    return clean | {f"ISOSIM_{k.upper()}": str(v) for k, v in settings.items()}


def start(command: list[str], log: Path, *, release: Path | None = None, **settings: Any) -> subprocess.Popen[bytes]:
    """`release`: a folder with another release's code, which runs instead of this tree's."""
    variables = environment(**settings)
    if release is not None:
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(release), os.environ.get("PYTHONPATH")]))
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "service.cli", *command],
            env=variables, cwd=release, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip


def serve_with(folder: Path, running: list[Process], *, port: int | None = None, **settings: Any) -> Server:
    port = port or free_port()
    log = folder / f"serve-{port}.log"
    url = f"http://127.0.0.1:{port}"
    server = Server(start(["serve"], log, port=port, **settings), log, url, httpx.Client(base_url=url, timeout=60))
    running.append(server)

    wait_until(lambda: httpx.get(url + "/readyz").status_code == 200, 120)  # one that ends is noticed at once
    return server


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts servers with given settings; all are gone after the test."""
    running: list[Process] = []
    yield lambda **settings: serve_with(tmp_path, running, **settings)
    for process in running:
        process.kill()


@pytest.fixture(scope="session")
def tiny_server(tiny_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server on the tiny encoder for the tests that change nothing of it."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copytree(tiny_store / "encoders", folder / "store" / "encoders")
    running: list[Process] = []
    yield serve_with(folder, running, model_store=folder / "store", encoder="tiny")
    for process in running:
        process.kill()


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
    def popen(self) -> "subprocess.Popen[bytes] | None":
        return self.process and self.process.popen

    def answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((self.address, self.port), 0.2) as s:
            s.sendall(b"PING\r\n")
            return s.recv(16).startswith(b"+PONG")
        return False

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Starts RQ workers with given settings; all are gone after the test."""
    running: list[Process] = []

    def begin(**settings: Any) -> Process:
        log = tmp_path / f"worker-{len(running)}.log"
        running.append(Process(start(["worker"], log, **settings), log))
        return running[-1]

    yield begin
    for process in running:
        process.kill()
