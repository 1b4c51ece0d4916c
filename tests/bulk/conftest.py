"""A store with a calibrated domain, texts in files, and two Ray nodes on this machine."""

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isosim.bulk.plan import BulkRequest
from isosim.bulk.run import RunOptions
from isosim.encoders.store import EncoderArtifact, EncoderStore
from isosim.scoring.calibration import DomainRef
from tests.commands.conftest import calibrate
from tests.processes import environment
from tests.text import sentences

ROWS = 900
TEXTS = sentences(ROWS)


@pytest.fixture(scope="session")
def bulk_store(tiny_store: Path, tiny: EncoderArtifact, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny encoder and `tickets@1`, soft whitening."""
    store = tmp_path_factory.mktemp("bulk") / "store"
    shutil.copytree(tiny_store / "encoders", store / "encoders")
    calibrate(store, EncoderStore.at(store).find(tiny.id), "tickets", "soft")
    return store


@pytest.fixture(scope="session")
def texts_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Parquet file of 900 texts in row groups of 400, with two more columns."""
    file = tmp_path_factory.mktemp("texts") / "texts.parquet"
    other = [TEXTS[(row + 1) % ROWS] for row in range(ROWS)]
    table = pa.table({"id": [f"t{row}" for row in range(ROWS)], "text": TEXTS, "other": other})
    pq.write_table(table, file, row_group_size=400)
    return file


def asked(source: Path | str, task: str = "embed", **given: object) -> BulkRequest:
    """A bulk command on the tiny store."""
    columns = ["text"] if task == "embed" else ["text", "other"]
    known = {
        "columns": columns, "keep": (), "form": None, "delimiter": None, "write": "parquet", "space": "calibrated",
        "normalize": True, "domain": DomainRef("tickets"), "device": "cpu", "part_rows": 100,
    }  # fmt: skip
    return BulkRequest(task=task, input=str(source), **known | given)  # type: ignore[arg-type]


def run_options(store: Path, address: str | None = None, *, lenient: bool = True) -> RunOptions:
    return RunOptions(store, address, local_cores=2, cores=1, most=0, lenient=lenient)


@pytest.fixture(scope="session")
def two_nodes() -> Iterator[str]:
    """The address of a Ray of two nodes with a core each."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    for attempts_left in (2, 1, 0):  # Ray gives a node 30 s to start, which a crowded machine exceeds
        cluster = Cluster(initialize_head=False)
        try:
            cluster.add_node(**node, include_dashboard=False)
            cluster.add_node(**node)
            break
        except Exception:  # Ray raises a bare one
            with contextlib.suppress(AssertionError):  # processes of the failed start that are not gone yet
                cluster.shutdown()
            if not attempts_left:
                raise
    try:
        yield cluster.address
    finally:
        cluster.shutdown()


@pytest.fixture
def run_bulk(bulk_store: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """`isosim bulk` in a process of its own, on the tiny store."""

    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "isosim.cli", "bulk", *words]
        settings = environment(model_store=bulk_store, encoder="tiny")
        return subprocess.run(command, env=settings, capture_output=True, text=True, timeout=300, check=False)

    return run
