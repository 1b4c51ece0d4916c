"""Compares pairs/s and latency of isosim, ONNX Runtime alone and other servers, on the same uncached pairs."""

import itertools
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from isosim.encoders.store import EncoderArtifact, EncoderStore
from isosim.encoders.tokenizer import FastTokenizer
from loadtest import servers, texts
from loadtest.bare_session import PAIR
from loadtest.client import Load
from loadtest.servers import Server
from loadtest.setup import UNCACHED, Line, Result, Setup, drive

CONNECTIONS = (1, 16, 64)
VNNI = "vnni" in Path("/proc/cpuinfo").read_text()  # whether the CPU computes int8 dot products in one instruction
STREAM = 4096  # number of texts for ONNX Runtime alone and for sentence-transformers


def token_stream(artifact: EncoderArtifact, pairs: list[texts.Pair]) -> list[list[int]]:
    tokenize = FastTokenizer(artifact.tokenizer, artifact.spec.max_length)
    return [list(tokens.ids) for tokens in tokenize([text for pair in pairs for text in pair][:STREAM], "right")]


def bare_session(artifact: EncoderArtifact, pairs: list[texts.Pair], seconds: float) -> dict[str, dict[str, float]]:
    """Results of ONNX Runtime alone: sentences/s by mode and batch size, and the median milliseconds of a pair."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(token_stream(artifact, pairs), file)
        file.flush()
        command = [sys.executable, "-m", "loadtest.bare_session", str(artifact.encoder), file.name, str(seconds)]
        done = subprocess.run(command, cwd=servers.ROOT, capture_output=True, check=True)  # noqa: S603 - ours
    found: dict[str, dict[str, float]] = json.loads(done.stdout)
    return found


def sentence_transformers(setup: Setup) -> dict[str, float] | None:
    """Batch size -> sentences/s of sentence-transformers on the same texts; None if it is not installed."""
    python, checkpoint = setup.peers / "sentence-transformers" / "bin" / "python", setup.peers / "checkpoint"
    if not python.is_file() or not checkpoint.is_file():
        return None
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump([text for pair in setup.pairs for text in pair][:STREAM], file)
        file.flush()
        script = str(servers.ROOT / "loadtest" / "peers" / "in_process.py")
        command = [str(python), script, checkpoint.read_text().strip(), file.name, str(setup.seconds)]
        done = subprocess.run(command, cwd=servers.ROOT, capture_output=True, check=True)  # noqa: S603 - ours
    found: dict[str, float] = json.loads(done.stdout)
    return found


def best(found: dict[str, dict[str, float]]) -> float:
    return max(rate for way, rates in found.items() if way != PAIR for rate in rates.values())


def contestants(setup: Setup, stack: ExitStack) -> dict[str, tuple[Server, list[bytes]]]:
    """Starts every available server. Returns each server with its requests; all servers get the same pairs."""
    own = texts.single_pairs(setup.pairs)
    found: dict[str, tuple[Server, list[bytes]]] = {}
    for name, encoder in setup.encoders.items():
        store = stack.enter_context(servers.own_store(setup.store, encoder))
        found[f"isosim {name}"] = stack.enter_context(servers.isosim(store, encoder, **UNCACHED)), own
    binary, model = setup.peers / "infinity" / "bin" / "infinity_emb", setup.peers / "infinity-model"
    if binary.is_file() and model.is_dir():
        theirs = texts.infinity_pairs(setup.pairs, model.name)
        for name, engine in (("infinity onnx", "optimum"), ("infinity torch", "torch")):
            found[name] = stack.enter_context(servers.infinity(binary, model, engine)), theirs
    return found


def measure(setup: Setup) -> Result:
    loads: dict[str, dict[int, list[Load]]] = defaultdict(lambda: defaultdict(list))
    bare: dict[str, list[dict[str, dict[str, float]]]] = defaultdict(list)
    artifacts = {name: EncoderStore.at(setup.store).find(encoder) for name, encoder in setup.encoders.items()}
    with ExitStack() as stack:
        everyone = contestants(setup, stack)
        running = [server for server, _ in everyone.values()]
        # A stream continues from one measurement to the next, so that requests are not repeated.
        streams = {name: itertools.cycle(requests) for name, (_, requests) in everyone.items()}
        for _ in range(setup.rounds):
            for connections in CONNECTIONS:
                for name, (server, _) in everyone.items():
                    with servers.paused([other for other in running if other is not server]):
                        load = drive(server.port, streams[name], connections, setup.seconds)
                    loads[name][connections].append(load)
            with servers.paused(running):
                for name, artifact in artifacts.items():
                    bare[name].append(bare_session(artifact, setup.pairs, 2 * setup.seconds))
                in_process = sentence_transformers(setup)
    return {
        "loads": {
            name: {str(c): middle([load.summary() for load in rounds]) for c, rounds in by.items()}
            for name, by in loads.items()
        },
        "bare": {
            name: {"best_sentences_per_second": median(best(found) for found in rounds), "rounds": rounds}
            for name, rounds in bare.items()
        },
        "sentence_transformers_in_process": in_process,
        "ratios": ratios(loads, bare),
    }


def middle(summaries: list[dict[str, Any]]) -> dict[str, Any]:
    """The round with the median rate."""
    return sorted(summaries, key=lambda summary: float(summary["per_second"]))[len(summaries) // 2]


def ratios(
    loads: dict[str, dict[int, list[Load]]], bare: dict[str, list[dict[str, dict[str, float]]]]
) -> dict[str, list[float]]:
    """Ratios of results from the same round. The machine's speed may change from round to round."""

    def rates(name: str, connections: int) -> list[float]:
        return [load.rate for load in loads[name][connections]]

    def medians(name: str) -> list[float]:
        return [float(load.summary()["p50_ms"]) for load in loads[name][1]]  # type: ignore[arg-type]

    def divided(above: list[float], below: list[float]) -> list[float]:
        return [round(a / b, 3) for a, b in zip(above, below, strict=True)]

    found: dict[str, list[float]] = {}
    for name, rounds in bare.items():
        sentences = [2 * rate for rate in rates(f"isosim {name}", 64)]
        found[f"isosim {name} / bare session, sentences/s at 64 connections"] = divided(
            sentences, [best(b) for b in rounds]
        )
    for name in ("isosim fp32", "isosim reduced"):
        for peer in ("infinity onnx", "infinity torch"):
            if name in loads and peer in loads:
                for connections in CONNECTIONS:
                    label = f"{name} / {peer}, pairs/s at {connections} connections"
                    found[label] = divided(rates(name, connections), rates(peer, connections))
                found[f"{name} / {peer}, p50 at one connection"] = divided(medians(name), medians(peer))
    alone = [found[PAIR]["median_ms"] for found in bare["fp32"]]
    found["isosim fp32, p50 at one connection / bare session's median for the same pairs"] = divided(
        medians("isosim fp32"), alone
    )
    if "infinity onnx" in loads:
        found["bare session fp32, a pair at a time / infinity onnx, p50 at one connection"] = divided(
            alone, medians("infinity onnx")
        )
    if "isosim reduced" in loads:
        found["isosim reduced / isosim fp32, pairs/s at 64 connections"] = divided(
            rates("isosim reduced", 64), rates("isosim fp32", 64)
        )
    quantiles = [np.percentile(load.latencies(), [99, 50]) for load in loads["isosim fp32"][1]]
    found["isosim fp32, p99 / p50 at one connection"] = [round(float(p99 / p50), 3) for p99, p50 in quantiles]
    return found


BARS = {
    "isosim fp32 / infinity onnx, pairs/s at 64 connections": (2.2, False),
    "isosim fp32 / bare session, sentences/s at 64 connections": (0.9, False),
    "isosim reduced / bare session, sentences/s at 64 connections": (0.8, False),
    "isosim reduced / isosim fp32, pairs/s at 64 connections": (1.0, False),
    "isosim reduced / infinity onnx, pairs/s at 64 connections": (3.5 if VNNI else 3.0, False),
    "isosim fp32, p50 at one connection / bare session's median for the same pairs": (1.2, True),
    "isosim fp32 / infinity onnx, p50 at one connection": (0.45, True),
    "bare session fp32, a pair at a time / infinity onnx, p50 at one connection": (0.45, True),
    "isosim fp32, p99 / p50 at one connection": (3.0, True),
}
NOTES = {
    "bare session fp32, a pair at a time / infinity onnx, p50 at one connection": "no server can be faster than this",
}


def lines(result: Result) -> list[Line]:
    return [
        Line(name, median(result["ratios"][name]), bar, at_most, note=NOTES.get(name, ""))
        for name, (bar, at_most) in BARS.items()
        if name in result["ratios"]
    ]
