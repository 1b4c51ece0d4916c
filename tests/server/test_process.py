"""The process as an operator sees it: what it loads, what it refuses, what it measures."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.faults.load import metric
from tests.processes import Process, Serve, Server, command, free_port, start, wait_until
from tests.text import sentences


def test_every_metric_is_there(tiny_server: Server) -> None:
    tiny_server.client.post("/similarity", json={"pairs": [sentences(2)]})
    text = tiny_server.client.get("/metrics").text
    families = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE isosim_")}
    reference = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    assert families == set(re.findall(r"^\| `(isosim_\w+)", reference, re.M))
    for line in (
        'isosim_request_duration_seconds_count{route="/similarity",status="200"}',
        'isosim_stage_duration_seconds_count{stage="inference"}',
        'isosim_cache_lookups_total{cache="memory",result="miss"}',
        'isosim_cache_lookups_total{cache="redis",result="error"} 0.0',
        'isosim_jobs{status="failed"} 0.0',
        "isosim_ready 1.0",
        'isosim_job_ends_total{status="failed"} 0.0',
        "isosim_log_lines_dropped_total 0.0",
    ):
        assert line in text
    assert "\nisosim_redis_up" not in text  # there is none


def test_port_0_is_a_free_one_that_the_log_names(store: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    server = Process(start(["serve"], log, port=0, model_store=store, encoder="tiny"), log)
    try:
        url = wait_until(lambda: re.search(r'"message":"ready","url":"(.+?)"', log.read_text()))[1]
        assert httpx.get(f"{url}/readyz").status_code == 200
    finally:
        server.kill()


def test_metrics_may_have_a_port_of_their_own(serve: Serve, store: Path) -> None:
    port = free_port()
    server = serve(model_store=store, encoder="tiny", metrics_port=port)
    assert "isosim_ready 1.0" in httpx.get(f"http://127.0.0.1:{port}/metrics").text
    assert server.client.get("/metrics").status_code == 404
    with contextlib.ExitStack() as stack:  # unfinished requests neither keep scrapers out nor take a thread each
        threads = Path(f"/proc/{server.popen.pid}/task")
        before = len(list(threads.iterdir()))
        for _ in range(60):
            stack.enter_context(socket.create_connection(("127.0.0.1", port))).sendall(b"GET /met")
        assert "isosim_ready 1.0" in httpx.get(f"http://127.0.0.1:{port}/metrics").text
        assert len(list(threads.iterdir())) < before + 30
    assert server.stop() == -signal.SIGTERM
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/metrics")


def test_every_end_of_a_job_is_counted_once_by_each_server(serve: Serve, store: Path) -> None:
    settings: dict[str, Any] = {"model_store": store, "encoder": "tiny"}
    first, second = serve(**settings), serve(**settings)
    first.calibrate("d", sentences(300), method="sn")
    ends, wanted = 'isosim_job_ends_total{status="succeeded"}', 1
    for server in (first, second):
        wait_until(lambda server=server: metric(server, ends) == wanted, seconds=60)  # type: ignore[misc]
        assert metric(server, "isosim_job_duration_seconds_count") == wanted
    assert first.stop()
    third = serve(**settings)
    wait_until(lambda: metric(third, 'isosim_jobs{status="succeeded"}') == wanted)
    assert metric(third, ends) == 0


def test_the_api_process_never_loads_torch(tiny_server: Server) -> None:
    tiny_server.client.post("/similarity", json={"pairs": [sentences(2)]})
    maps = Path(f"/proc/{tiny_server.popen.pid}/maps").read_text()
    assert "onnxruntime" in maps
    assert "libtorch" not in maps


def processor_seconds(server: Server) -> tuple[float, float]:
    """What the server's main thread has used, and all others together."""
    ticks = {}
    for task in Path(f"/proc/{server.popen.pid}/task").iterdir():
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        ticks[int(task.name)] = int(fields[11]) + int(fields[12])
    own = ticks.pop(server.popen.pid)
    return own / os.sysconf("SC_CLK_TCK"), sum(ticks.values()) / os.sysconf("SC_CLK_TCK")


def test_cached_pairs_use_the_event_loops_thread_alone(serve: Serve, minilm_store: Path, tmp_path: Path) -> None:
    """BLAS has threads that wake for products this large, and then spin on the cores that the encoder needs."""
    shutil.copytree(minilm_store, tmp_path / "own")
    server = serve(model_store=tmp_path / "own")
    texts = sentences(16)
    body = {"pairs": list(zip(texts[::2], texts[1::2], strict=True))}
    server.client.post("/similarity", json=body)
    before = processor_seconds(server)
    for _ in range(500):
        assert server.client.post("/similarity", json=body).status_code == 200
    own, others = (after - start for after, start in zip(processor_seconds(server), before, strict=True))
    assert others < own / 10


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"host": "0.0.0.0"}, "ISOSIM_API_KEYS_FILE"),  # noqa: S104
        ({"port": "taken"}, "cannot listen on port {port}; choose another one"),
    ],
)
def test_a_start_that_is_refused_says_what_to_do(
    tiny_server: Server, store: Path, settings: dict[str, Any], said: str
) -> None:
    taken = {"port": tiny_server.port} if "port" in settings else {}
    refused = command("serve", **dict[str, Any](model_store=store, encoder="tiny") | settings | taken)
    assert refused.returncode == 1
    assert said.format(port=tiny_server.port) in refused.stderr


def test_a_calibration_steps_back_behind_scoring() -> None:
    code = "import os; from isosim.worker.calibrating import step_back; step_back(); print(os.sched_getscheduler(0))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == str(os.SCHED_IDLE)
