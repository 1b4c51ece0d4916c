"""The benchmark's own parts: its clients count right, its limit lines are lines, its GPU script runs without one."""

import asyncio
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import httpx
import orjson
import uvloop

from isosim.encoders.store import EncoderArtifact
from loadtest import bare_session, servers
from loadtest.bench import main
from loadtest.client import Load, closed_loop, open_loop, request
from loadtest.measuring import Line
from tests.processes import Server
from tests.text import sentences

BODY = orjson.dumps({"pairs": [sentences(2)]})


def port_of(server: Server) -> int:
    return int(server.url.rpartition(":")[2])


def test_a_closed_loop_counts_every_answer_once(tiny_server: Server) -> None:
    requests = [request("/similarity", BODY), request("/similarity", b"{}"), request("/nowhere", BODY)]
    load = uvloop.run(closed_loop(port_of(tiny_server), iter(requests * 20), 3, 30.0))
    assert [load.statuses.count(status) for status in (200, 422, 404)] == [20, 20, 20]
    assert load.failures == 0
    assert len(load.latencies()) == 20
    assert 0 < load.summary()["p50_ms"] <= load.summary()["p99_ms"]


def test_an_open_loop_sends_as_planned_whatever_comes_back(tiny_server: Server) -> None:
    load = uvloop.run(open_loop(port_of(tiny_server), itertools.cycle([request("/similarity", BODY)]), 200, 1.0))
    assert 120 < len(load.statuses) < 300
    assert set(load.statuses) == {200}


def test_a_server_that_dies_is_a_failure_and_no_answer(serve: Callable[..., Server], store: Path) -> None:
    server = serve(model_store=store, encoder="tiny")

    async def die() -> Load:
        loop = asyncio.create_task(
            closed_loop(port_of(server), itertools.cycle([request("/similarity", BODY)]), 4, 30.0)
        )
        await asyncio.sleep(0.5)
        server.kill()
        return await loop

    load = uvloop.run(die())
    assert load.failures == 4
    assert set(load.statuses) == {200}


def test_the_bare_route_answers_like_the_service(tiny_server: Server) -> None:
    with servers.bare_route() as bare:
        answer, real = (
            httpx.post(f"{url}/similarity", content=BODY, headers={"content-type": "application/json"})
            for url in (f"http://127.0.0.1:{bare.port}", tiny_server.url)
        )
    assert answer.status_code == 200
    assert answer.json().keys() == real.json().keys()
    assert {name for name in real.headers if name.startswith("x-")} <= answer.headers.keys()


def test_the_bare_session_runs_every_batch_size_both_ways(tiny: EncoderArtifact) -> None:
    found = bare_session.measure(tiny, sentences(200), 1.0)
    assert all(rate > 0 for rates in found.values() for rate in rates.values())
    assert len(found) == 3


def test_the_gpu_part_runs_where_there_is_none(tiny_store: Path, tmp_path: Path) -> None:
    (tmp_path / "sts" / "stsb").mkdir(parents=True)
    for part in ("train", "dev", "test"):
        lines = [f"1\t{a}\t{b}" for a, b in itertools.pairwise(sentences(60))]
        (tmp_path / "sts" / "stsb" / f"{part}.tsv").write_text("\n".join(lines))
    options = f"--store {tiny_store} --encoder tiny --data {tmp_path} --results {tmp_path} --seconds 0.1"
    assert main(["gpu", *options.split(), "--engine", "onnxruntime", "--tokens", "64", "--servers", "1"]) == 0
    figures = json.loads((tmp_path / "gpu.json").read_text())["result"]["columns"]["tiny"]
    assert figures["tokens/s, texts of 16 tokens"] > 0
    assert figures["largest difference between a cosine here and at fp32 on the CPU"] == 0  # the same graph and device
    assert figures["largest change of a cosine by the other 63 texts of a batch"] < 1e-5
    assert figures["HTTP, servers: 1, pairs in a request: 32; pairs/s"] > 0


def test_a_bar_holds_on_its_own_side() -> None:
    assert Line("", 1.0, 1.0).holds
    assert not Line("", 0.9, 1.0).holds
    assert Line("", 0.9, 1.0, at_most=True).holds
    assert not Line("", float("nan"), 1.0).holds
