"""Jobs on Ray: every part once, whoever computes it and whatever was killed in between."""

import hashlib
import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

from isosim.bulk.engine import Engine
from isosim.bulk.places import Place
from isosim.bulk.plan import Plan, plan_for
from isosim.bulk.run import Summary, run
from isosim.errors import BackendFailure, Conflict
from isosim.scoring.calibration import DomainRef
from loadtest.bulk import kill_tree
from tests.bulk.conftest import ROWS, TEXTS, asked, run_options
from tests.commands.conftest import calibrate
from tests.processes import Process, free_port, start, wait_until


def job(
    output: Path | str, store: Path, source: Path | str, address: str, *, lenient: bool = True, **given: object
) -> tuple[Plan, Summary]:
    place = Place(str(output))
    plan, _ = plan_for(asked(source, **given), store, "tiny", place)
    return plan, run(plan, place, run_options(store, address, lenient=lenient), lambda *_: None)


def hashes(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.glob("part-*"))}


def expected(plan: Plan, store: Path) -> dict[str, str]:
    """One engine, without Ray."""
    engine = Engine(plan, store, 1)
    return {plan.name(part): hashlib.sha256(engine(part, lenient=True)[0]).hexdigest() for part in plan.parts}


def test_two_nodes_give_the_bytes_of_one_engine(
    tmp_path: Path, bulk_store: Path, texts_file: Path, two_nodes: str
) -> None:
    import ray.data

    ray.data.DataContext.get_current().wait_for_min_actors_s = 60  # so few parts are made before both are there
    plan, summary = job(tmp_path / "out", bulk_store, texts_file, two_nodes, part_rows=50)
    assert (summary.nodes, summary.engines, summary.parts, summary.rows) == (2, 2, 18, ROWS)
    assert hashes(tmp_path / "out") == expected(plan, bulk_store)
    success = json.loads((tmp_path / "out" / "_SUCCESS").read_text())
    assert success["files"] == hashes(tmp_path / "out")
    assert sorted(file.name for file in (tmp_path / "out").iterdir() if file.name[0] != "p") == [
        "_SUCCESS",
        "_plan.json",
    ]
    assert pq.read_table(tmp_path / "out")["row"].to_pylist() == list(range(ROWS))
    _, again = job(tmp_path / "out", bulk_store, texts_file, "no address is needed", part_rows=50)
    assert (again.computed, again.rows) == (0, ROWS)


def test_a_node_without_the_store_is_sent_what_it_needs(
    tmp_path: Path, bulk_store: Path, texts_file: Path, two_nodes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store goes while the job is on its way: only what was sent can have made the parts."""
    store = tmp_path / "store"
    shutil.copytree(bulk_store, store)
    place = Place(str(tmp_path / "out"))
    plan, _ = plan_for(asked(texts_file), store, "tiny", place)
    gone = threading.Event()

    def report(stage: str, _: float | None) -> None:
        if stage == "starting" and not gone.is_set():
            gone.set()
            shutil.rmtree(store)

    run(plan, place, run_options(store, two_nodes), report)
    assert gone.is_set()
    assert hashes(tmp_path / "out") == expected(plan, bulk_store)


def test_a_killed_job_whose_files_were_hurt_goes_on_and_ends_with_the_same_files(
    tmp_path: Path, bulk_store: Path, texts_file: Path, two_nodes: str
) -> None:
    """The command and all of its Ray get SIGKILL between two parts; another Ray goes on."""
    options = ["--column", "text", "--domain", "tickets", "--part-rows", "5", "--device", "cpu", "--keep", "id"]
    command = ["bulk", "embed", str(texts_file), str(tmp_path / "out"), *options]
    settings = {"model_store": bulk_store, "encoder": "tiny"}
    process = Process(start(command, tmp_path / "first.log", **settings), tmp_path / "first.log")
    done = tmp_path / "out" / "_done"

    def some() -> bool:
        return done.is_dir() and len(list(done.iterdir())) >= 5

    wait_until(some, 180, every=0.002)
    assert kill_tree(process.popen.pid) > 5, "Ray's processes are not below the command"
    process.wait()
    left = hashes(tmp_path / "out")
    assert 5 <= len(left) < 180
    torn, lost = (tmp_path / "out" / f"part-{mark.stem}.parquet" for mark in sorted(done.glob("[0-9]*.json"))[:2])
    torn.write_bytes(torn.read_bytes()[:-1])  # marks alone do not count
    lost.unlink()
    (tmp_path / "out" / ".part-000179.parquet.0").write_bytes(b"half a file that was never renamed")
    again = start([*command, "--json", "--address", two_nodes], tmp_path / "second.log", **settings)
    assert again.wait(timeout=180) == 0, (tmp_path / "second.log").read_text()
    facts = json.loads((tmp_path / "second.log").read_text().splitlines()[-1])
    assert 0 < facts["computed"] < ROWS
    plan, _ = plan_for(asked(texts_file, part_rows=5, keep=("id",)), bulk_store, "tiny", Place(str(tmp_path / "out")))
    assert hashes(tmp_path / "out") == expected(plan, bulk_store)
    assert left.items() <= hashes(tmp_path / "out").items()


def test_another_plan_is_refused_and_a_new_champion_is_not_taken(
    tmp_path: Path, bulk_store: Path, texts_file: Path
) -> None:
    store = tmp_path / "store"
    shutil.copytree(bulk_store, store)
    out = Place(str(tmp_path / "out"))
    first, _ = plan_for(asked(texts_file), store, "tiny", out)
    for given, told in (
        ({"space": "raw"}, "space: calibrated, now raw"),
        ({"part_rows": 7}, "part_rows: 100, now 7"),
        ({"task": "score"}, "task: embed, now score"),
    ):
        with pytest.raises(Conflict, match=told):
            plan_for(asked(texts_file, **given), store, "tiny", out)  # type: ignore[arg-type]
    from isosim.encoders.store import EncoderStore

    assert calibrate(store, EncoderStore.at(store).find("tiny"), "tickets", "centring") == 2
    assert plan_for(asked(texts_file), store, "tiny", out)[0] == first
    with pytest.raises(Conflict, match="version: 1, now 2"):
        plan_for(asked(texts_file, domain=DomainRef("tickets", 2)), store, "tiny", out)
    changed = tmp_path / "texts.csv"
    changed.write_text("text\n" + "\n".join(TEXTS[:10]) + "\n")
    plan_for(asked(changed), store, "tiny", Place(str(tmp_path / "other")))
    time.sleep(0.01)  # a clock's tick
    changed.write_text("text\n" + "\n".join(reversed(TEXTS[:10])) + "\n")
    with pytest.raises(Conflict, match="the input has changed"):
        plan_for(asked(changed), store, "tiny", Place(str(tmp_path / "other")))
    with pytest.raises(Conflict, match=r"holds texts\.csv but no _plan\.json"):
        plan_for(asked(texts_file), store, "tiny", Place(str(tmp_path)))


def test_a_job_that_may_not_pass_over_bad_rows_ends_at_the_first_and_can_be_resumed(
    tmp_path: Path, bulk_store: Path, two_nodes: str
) -> None:
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in [*TEXTS[:25], ""]))
    with pytest.raises(BackendFailure, match=r"row 25 of the input: empty; with --on-error null"):
        job(tmp_path / "out", bulk_store, tmp_path / "x.jsonl", two_nodes, part_rows=10, lenient=False)
    _, summary = job(tmp_path / "out", bulk_store, tmp_path / "x.jsonl", two_nodes, part_rows=10)
    assert summary.failed == {"empty": 1}
    assert summary.computed < summary.rows == 26


def test_object_storage_in_and_out(
    run_bulk: Callable[..., Any], bulk_store: Path, texts_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 as moto serves it, with a Ray of the command's own."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=free_port())
    server.start()
    try:
        host, port = server.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "test")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        place = Place("s3://bulk/out")
        assert httpx.put(f"http://{host}:{port}/bulk").status_code == 200
        Place("s3://bulk").write("in/texts.parquet", texts_file.read_bytes())
        words = ["score", "s3://bulk/in", "s3://bulk/out", "--columns", "text", "other", "--domain", "tickets"]
        words += ["--device", "cpu", "--part-rows", "300"]
        done = run_bulk(*words, "--json")
        assert done.returncode == 0, done.stderr
        plan = Plan.from_json(place.read("_plan.json"))
        made = {n: hashlib.sha256(place.read(n)).hexdigest() for n in place.names() if n.startswith("part-")}
        assert made == expected(plan, bulk_store)
        assert json.loads(place.read("_SUCCESS"))["files"] == made
        assert not place.names("_done")
        with pytest.raises(Conflict, match="created by another process"):
            place.create("_plan.json", b"{}")
        refused = run_bulk(*words[:-1], "200")
        assert refused.returncode == 1
        assert "part_rows: 300, now 200" in refused.stderr
    finally:
        server.stop()
