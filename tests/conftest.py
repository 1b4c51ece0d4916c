"""Real parts for the tests: a small BERT of our own, the default encoder, servers in their own processes, a Redis."""

import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from isosim.encoders.store import EncoderArtifact, EncoderStore
from tests.encoders import export, save_bert
from tests.processes import Process, RedisServer, Serve, Server, serve_with, skip_without, start
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
    "tests/commands/test_encoders.py": "calibration",
    "tests/docs/test_commands.py": "pages",
    "tests/docs/test_object_storage_page.py": "encoder",
    "tests/faults/": "faults",
    "tests/api/scoring/test_meaning.py": "calibration",
    "tests/modelling/encoder/test_architectures.py": "calibration",
    "tests/modelling/training/test_training.py": "training",
    "tests/observability/test_access_log.py": "operation",
    "tests/observability/test_silence.py": "operation",
    "tests/observability/test_tracing.py": "operation",
    "tests/security/test_connections.py": "operation",
    "tests/security/test_limits_of_keys.py": "operation",
    "tests/security/test_listings.py": "operation",
    "tests/security/test_nothing_leaves.py": "operation",
    "tests/security/test_posted_text.py": "operation",
    "tests/security/test_redis_tls.py": "operation",
    "tests/security/test_requests.py": "operation",
    "tests/security/test_secrets.py": "operation",
    "tests/server/test_brought_vectors.py": "calibration",
    "tests/server/test_remote_encoder.py": "operation",
    "tests/server/test_scale.py": "operation",
}
# … and to every test that needs one of these fixtures.
GROUP_OF_FIXTURE = {
    "balancer": "faults", "browser": "browser", "data": "encoder", "layer3_store": "encoder", "minilm_store": "encoder",
}  # fmt: skip


# What begins first, each as one: these wait more than they compute, and use containers, networks and times of the whole
# machine. A browser drops its connections when a network appears: it runs where nothing else makes one meanwhile.
FIRST = (
    ("tests/console/", "tests/deploy/", "tests/faults/test_redis.py"),
    ("tests/faults/", "tests/server/test_lifecycle.py", "tests/server/test_process.py"),
)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Marks each test with its groups, before `-m` selects, and puts FIRST first."""
    for item in items:
        groups = {group for start, group in GROUPS.items() if place_of(item).startswith(start)}
        groups |= {group for name, group in GROUP_OF_FIXTURE.items() if name in getattr(item, "fixturenames", ())}
        for group in sorted(groups):
            item.add_marker(group)
    items.sort(key=lambda item: turn_of(place_of(item)))
    return (yield)


def place_of(item: pytest.Item) -> str:
    return item.path.relative_to(ROOT).as_posix()


def turn_of(place: str) -> int:
    """The number of the part of FIRST that a file belongs to, or how many there are."""
    return next((turn for turn, starts in enumerate(FIRST) if place.startswith(starts)), len(FIRST))


class Failures:
    """Shows each failure at once: a run that is stopped would never show it."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.write_line(f"\n{report.nodeid}, {report.when}:\n{report.longreprtext[-3000:]}")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None):  # in the process that hands out the tests
        config.pluginmanager.register(Failures(config))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hands out whole files, and each part of FIRST as one."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            turn = turn_of(file)
            return file if turn == len(FIRST) else f"part {turn}"

    return Scheduling(config, log)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


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
    words = {word for text in sentences(1000) for word in re.findall(r"\w+|[^\w\s]", text.lower())}
    letters = sorted({letter for word in words for letter in word})
    pieces = [*letters, *(f"##{letter}" for letter in letters), *sorted(words - set(letters))]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    # Not trained: training breaks ties by chance, and each run of the tests would have another encoder.
    vocabulary = {piece: number for number, piece in enumerate([*special, *pieces])}
    tokenizer = json.loads(BertWordPieceTokenizer(vocab=vocabulary, lowercase=True).to_str())
    # As training leaves it: it adds no [CLS] and [SEP].
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer | {"post_processor": None}))
    save_bert(folder, seed=0, dim=32, layers=4)
    return folder


def exported_once(tmp_path_factory: pytest.TempPathFactory, name: str, source: str, **options: Any) -> Path:
    """A store with an encoder that one of the processes that run tests side by side has exported for all of them."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / f"{name}.done").exists():
            export(folder / f"{name}-store", name, source, **options)
            (folder / f"{name}.done").touch()
    return shutil.copytree(folder / f"{name}-store", tmp_path_factory.mktemp(name) / "store")


@pytest.fixture(scope="session")
def tiny_store(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model store with the tiny encoder exported as `tiny`; copy it before writing to it."""
    return exported_once(tmp_path_factory, "tiny", str(tiny_checkpoint), max_length=32)


@pytest.fixture(scope="session")
def tiny(tiny_store: Path) -> EncoderArtifact:
    return EncoderStore.at(tiny_store).find("tiny")


@pytest.fixture
def store(tiny_store: Path, tmp_path: Path) -> Path:
    """A store of the test's own with the tiny encoder in it."""
    shutil.copytree(tiny_store / "encoders", tmp_path / "store" / "encoders")
    return tmp_path / "store"


@pytest.fixture(scope="module")
def module_store(tiny_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of the module's own with the tiny encoder in it."""
    folder = tmp_path_factory.mktemp("module")
    shutil.copytree(tiny_store / "encoders", folder / "store" / "encoders")
    return folder / "store"


@pytest.fixture(scope="session")
def minilm_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model store with the default encoder and its shipped calibration."""
    return exported_once(tmp_path_factory, "minilm", "minilm")


@pytest.fixture(scope="session")
def layer3_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model store with the third layer of the default encoder: raw and crowded."""
    return exported_once(tmp_path_factory, "minilm-layers3-mean", "minilm", layers=3, pooling="mean")


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts servers with given settings; all are gone after the test."""
    yield from servers_in(tmp_path)


@pytest.fixture(scope="module")
def module_serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Starts servers with given settings; all are gone after the module."""
    yield from servers_in(tmp_path_factory.mktemp("servers"))


def servers_in(folder: Path) -> Iterator[Serve]:
    running: list[Process] = []
    yield lambda **settings: serve_with(folder, running, **settings)
    for process in running:
        process.kill()


@pytest.fixture(scope="session")
def tiny_server(tiny_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server on the tiny encoder for the tests that change nothing of it."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copytree(tiny_store / "encoders", folder / "store" / "encoders")
    for begin in servers_in(folder):
        yield begin(model_store=folder / "store", encoder="tiny")


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Starts workers with given settings; all are gone after the test."""
    running: list[Process] = []

    def begin(**settings: Any) -> Process:
        log = tmp_path / f"worker-{len(running)}.log"
        running.append(Process(start(["worker"], log, **settings), log))
        return running[-1]

    yield begin
    for process in running:
        process.kill()
