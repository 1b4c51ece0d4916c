"""The benchmark's own parts: its clients count right, its limit lines are lines, its GPU script runs without one."""

import asyncio
import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import orjson

from isosim.encoders.store import EncoderArtifact
from loadtest import servers
from loadtest.bare_session import main as bare_session
from loadtest.client import Load, ask, closed_loop, forever, open_loop, request
from loadtest.setup import Line, run
from tests.processes import Server
from tests.text import sentences

ROOT = Path(__file__).parents[2]
BODY = orjson.dumps({"pairs": [sentences(2)]})


def port_of(server: Server) -> int:
    return int(server.url.rpartition(":")[2])


def test_a_closed_loop_counts_every_answer_once(tiny_server: Server) -> None:
    requests = [request("/similarity", BODY), request("/similarity", b"{}"), request("/nowhere", BODY)]
    load = run(closed_loop(port_of(tiny_server), iter(requests * 20), 3, 30.0))
    assert [load.statuses.count(status) for status in (200, 422, 404)] == [20, 20, 20]
    assert load.failures == 0
    assert len(load.latencies()) == 20
    assert 0 < load.summary()["p50_ms"] <= load.summary()["p99_ms"]  # type: ignore[operator]


def test_an_open_loop_sends_as_planned_whatever_comes_back(tiny_server: Server) -> None:
    load = run(open_loop(port_of(tiny_server), forever([request("/similarity", BODY)]), 200, 1.0))
    assert 120 < len(load.statuses) < 300
    assert set(load.statuses) == {200}


def test_a_server_that_dies_is_a_failure_and_no_answer(serve: Callable[..., Server], store: Path) -> None:
    server = serve(model_store=store, encoder="tiny")

    async def die() -> Load:
        loop = asyncio.create_task(closed_loop(port_of(server), forever([request("/similarity", BODY)]), 4, 30.0))
        await asyncio.sleep(0.5)
        server.kill()
        return await loop

    load = run(die())
    assert load.failures == 4
    assert set(load.statuses) == {200}


def test_the_bare_route_answers_like_the_service(tiny_server: Server) -> None:
    with servers.bare_route() as bare:
        (((status, headers, body),), ((_, real_headers, real_body),)) = (
            run(ask(port, request("/similarity", BODY))) for port in (bare.port, port_of(tiny_server))
        )
    assert status == 200
    assert orjson.loads(body).keys() == orjson.loads(real_body).keys()
    assert {name for name in real_headers if name.startswith("x-")} <= set(headers)


def test_the_bare_session_runs_every_batch_size_both_ways(tiny: EncoderArtifact, tmp_path: Path) -> None:
    stream = tmp_path / "stream.json"
    stream.write_text(json.dumps([[2, *range(5, 5 + n % 9), 3] for n in range(200)]))
    found = bare_session(str(tiny.encoder), str(stream), 1.0)
    assert all(rate > 0 for rates in found.values() for rate in rates.values())
    assert len(found) == 3


def test_the_gpu_script_runs_where_there_is_none(tiny_store: Path, tmp_path: Path) -> None:
    (tmp_path / "sts" / "stsb").mkdir(parents=True)
    for part in ("train", "dev", "test"):
        lines = [f"1\t{a}\t{b}" for a, b in itertools.pairwise(sentences(60))]
        (tmp_path / "sts" / "stsb" / f"{part}.tsv").write_text("\n".join(lines))
    target = tmp_path / "gpu.json"
    command = [sys.executable, "-m", "loadtest.gpu", "--store", str(tiny_store), "--encoders", "tiny,absent"]
    options = ["--providers", "CPUExecutionProvider", "--tokens", "64", "--seconds", "0.1", "--servers", "1"]
    subprocess.run(
        [*command, *options, "--data", str(tmp_path), "--output", str(target)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    figures = json.loads(target.read_text())["encoders"]["tiny"]
    assert figures["tokens_per_second"]["16"] > 0
    assert figures["new_shapes"]["first"]["p50_ms"] > 0
    assert figures["calibrator_ms"]["cpu"].keys() == {"2", "64", "512"}
    assert figures["cosines"]["largest"] == 0  # the reference is the same graph on the same device
    assert figures["cosines"]["by_batch"] < 1e-5
    assert figures["http"]["1"]["requests_of_32"]["failed"] == 0


def test_a_bar_holds_on_its_own_side() -> None:
    assert Line("", 1.0, 1.0).holds
    assert not Line("", 0.9, 1.0).holds
    assert Line("", 0.9, 1.0, at_most=True).holds
    assert not Line("", float("nan"), 1.0).holds
