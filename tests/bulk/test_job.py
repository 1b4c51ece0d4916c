"""Jobs: which job a folder belongs to, and that its files are the same after a crash, and on several machines."""

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isosim.bulk.cluster import cluster, distribute
from isosim.bulk.job import BLOCK, Where
from isosim.bulk.run import BlockWorker, run
from isosim.encoders.store import EncoderStore
from isosim.errors import Conflict, InvalidInput
from isosim.store.blobs import opened
from tests.bulk.conftest import ROWS, TEXTS, make, prepared
from tests.processes import Process, free_port, start, wait_until
from tests.stores import calibrate


def contents(output: Path | str) -> dict[str, bytes]:
    blobs = opened(str(output))
    return {entry.key: blobs.read(entry.key)[0] for entry in blobs.list("") if entry.key.startswith("part-")}


def many(file: Path, rows: int) -> Path:
    """Few distinct pairs of texts in many rows: a block takes little time."""
    cells = [[TEXTS[(row + shift) % ROWS] for row in range(rows)] for shift in (0, 1)]
    pq.write_table(pa.table(dict(zip(("text", "other"), cells, strict=True))), file)
    return file


def kill_tree(pid: int) -> int:
    """Sends SIGKILL to a process and its descendants; returns their number."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has ended
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    family, new = {pid}, {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - family
        family |= new
    for one in family:
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    return len(family)


@pytest.fixture
def run_bulk(bulk_store: Path, tmp_path: Path) -> Callable[..., Process]:
    """Starts `isosim bulk` on the tiny store, in a process of its own that writes to log.txt."""

    def begin(*words: object) -> Process:
        log = tmp_path / "log.txt"
        command = ["bulk", *map(str, words), "--domain", "tickets", "--device", "cpu"]
        return Process(start(command, log, model_store=bulk_store, encoder="tiny"), log)

    return begin


def test_another_job_is_refused_and_a_new_champion_is_not_taken(
    tmp_path: Path, bulk_store: Path, texts_file: Path
) -> None:
    store = tmp_path / "store"
    shutil.copytree(bulk_store, store)
    first, _, _ = prepared(tmp_path / "out", store, texts_file)
    for given, told in (
        ({"space": "raw"}, "space: calibrated, now raw"),
        ({"rows": 7}, "rows: 100, now 7"),
        ({"keep": ("id",)}, r"keep: \[\], now \['id'\]"),
        ({"task": "score"}, "task: embed, now score"),
    ):
        with pytest.raises(Conflict, match=told):
            prepared(tmp_path / "out", store, texts_file, **given)
    with pytest.raises(InvalidInput, match="cannot be called 'vector'"):
        prepared(tmp_path / "kept", store, texts_file, keep=("vector",))
    assert not (tmp_path / "kept").exists()  # nothing is claimed
    assert calibrate(store, EncoderStore.at(store).find("tiny"), "tickets", "centring") == 2
    assert prepared(tmp_path / "out", store, texts_file)[0] == first
    with pytest.raises(Conflict, match="version: 1, now 2"):
        prepared(tmp_path / "out", store, texts_file, domain="tickets@2")
    changed = tmp_path / "texts.csv"
    changed.write_text("text\na\n")
    prepared(tmp_path / "other", store, changed)
    changed.write_text("text\nb\n")
    os.utime(changed, (0, 0))
    with pytest.raises(Conflict, match="the input has changed"):
        prepared(tmp_path / "other", store, changed)
    with pytest.raises(Conflict, match=r"holds texts\.csv but no _job\.json"):
        prepared(tmp_path, store, texts_file)


def test_a_finished_job_needs_no_ray(tmp_path: Path, bulk_store: Path, texts_file: Path) -> None:
    make(tmp_path / "out", bulk_store, texts_file)
    job, rows, _ = prepared(tmp_path / "out", bulk_store, texts_file)
    nowhere = Where(bulk_store, address="127.0.0.1:1")
    summary = run(job, rows, str(tmp_path / "out"), nowhere, lambda *_: None)
    assert (summary.rows, summary.files, summary.computed) == (ROWS, 9, 0)
    assert json.loads((tmp_path / "out" / "_SUCCESS").read_text()) == {"rows": ROWS, "files": 9}
    assert pq.read_table(tmp_path / "out")["row"].to_pylist() == list(range(ROWS))


def test_a_killed_job_goes_on_and_ends_with_the_same_files(
    tmp_path: Path, bulk_store: Path, run_bulk: Callable[..., Process]
) -> None:
    """The command and all of its Ray get SIGKILL between two files; a file is lost as well."""
    source, out = many(tmp_path / "texts.parquet", 10 * BLOCK + 5), tmp_path / "out"
    words = ["score", source, out, "--columns", "text", "other"]
    process = run_bulk(*words)
    wait_until(lambda: len(list(out.glob("part-*"))) >= 3, 300, every=0.005)
    assert kill_tree(process.popen.pid) > 5, "Ray's processes are not below the command"
    process.wait()
    left = contents(out)
    assert 3 <= len(left) < 11
    (out / min(left)).unlink()
    (out / ".part-000010.parquet.0").write_bytes(b"half a file that was never renamed")
    log = tmp_path / "log.txt"
    log.unlink()
    assert run_bulk(*words, "--json").wait(300) == 0, log.read_text()
    assert json.loads(log.read_text().splitlines()[-1])["computed"] == (10 - len(left)) * BLOCK + 5 + BLOCK
    make(tmp_path / "alone", bulk_store, source, task="score", rows=BLOCK)
    assert contents(out) == contents(tmp_path / "alone")


@pytest.fixture(scope="module")
def bucket() -> Iterator[None]:
    """S3 as moto serves it, with a bucket called `bulk`."""
    from moto.server import ThreadedMotoServer

    with pytest.MonkeyPatch.context() as patch:
        server = ThreadedMotoServer(port=free_port())
        server.start()
        host, port = server.get_host_and_port()
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        assert httpx.put(f"http://{host}:{port}/bulk").status_code == 200
        yield
        server.stop()


@pytest.fixture(scope="module")
def two_nodes(bucket: None) -> Iterator[str]:
    """The address of a Ray of two nodes with a core each."""
    from ray.cluster_utils import Cluster

    node: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    ray = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
    try:
        ray.add_node(**node)
        yield ray.address
    finally:
        ray.shutdown()


def test_two_nodes_write_the_files_of_one_engine_into_object_storage(
    tmp_path: Path, bulk_store: Path, run_bulk: Callable[..., Process], two_nodes: str
) -> None:
    """Each node has one core, so that the second of the two workers runs on the second node."""
    source = many(tmp_path / "texts.parquet", 2 * BLOCK)
    opened("s3://bulk").write("in/texts.parquet", source.read_bytes())
    words = ["score", "s3://bulk/in", "s3://bulk/out", "--columns", "text", "other", "--address", two_nodes]
    assert run_bulk(*words).wait(300) == 0, (tmp_path / "log.txt").read_text()
    make(tmp_path / "alone", bulk_store, source, task="score", rows=BLOCK)
    assert contents("s3://bulk/out") == contents(tmp_path / "alone")


def test_pairs_in_object_storage_are_searched_again_without_ray(
    tmp_path: Path, bulk_store: Path, texts_file: Path, run_bulk: Callable[..., Process], two_nodes: str
) -> None:
    opened("s3://bulk").write("texts/texts.parquet", texts_file.read_bytes())
    words = ["pairs", "s3://bulk/texts/*.parquet", "--vectors", "s3://bulk/vectors", "--write", "csv"]
    log = tmp_path / "log.txt"
    assert run_bulk(*words, "s3://bulk/found", "--fmr", "1e-4", "--address", two_nodes).wait(300) == 0, log.read_text()
    assert "extrapolated, as" in log.read_text()
    again = ["s3://bulk/more", "--fmr", "1e-2", "--address", "127.0.0.1:1"]
    assert run_bulk(*words, *again).wait(300) == 0, log.read_text()
    pairs = [len(contents(f"s3://bulk/{name}")["part-000000.csv"].splitlines()) - 1 for name in ("found", "more")]
    assert pairs[0] < pairs[1] == json.loads(opened("s3://bulk/more").read("_SUCCESS")[0])["pairs"]
    assert run_bulk(*words, "s3://bulk/found", "--fmr", "1e-3").wait(300) == 1
    assert "target: {'fmr': 0.0001" in log.read_text()


def test_a_worker_that_sees_another_folder_ends_the_command(
    tmp_path: Path, bulk_store: Path, texts_file: Path, two_nodes: str
) -> None:
    job, rows, _ = prepared(tmp_path / "out", bulk_store, texts_file)
    (tmp_path / "out" / "_job.json").unlink()
    arguments = (job, str(tmp_path / "out"), Where(bulk_store))
    with cluster(two_nodes, 1) as ray, pytest.raises(Conflict, match="is a different folder on node"):
        list(distribute(ray, BlockWorker, arguments, enumerate(rows.blocks(100)), gpu=False, local=False))
