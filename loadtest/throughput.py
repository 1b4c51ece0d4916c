"""Compares pairs/s and latency of isosim, ONNX Runtime alone and other servers, on the same uncached pairs."""

import itertools
import json
import subprocess
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import orjson

from isosim.encoders.store import EncoderStore
from loadtest import bare_session, servers, texts
from loadtest.client import Load, request
from loadtest.measuring import UNCACHED, Contestants, Line, Result, Setup, divided, in_turn

CONNECTIONS = (1, 16, 64)
OURS = ("isosim fp32", "isosim reduced", "isosim bf16")
TOKENS = (8, 16, 32, 64, 128, 256)
INT8 = 3.5 if "vnni" in Path("/proc/cpuinfo").read_text() else 3.0  # lower if int8 products take several instructions
FLOOR = "bare session fp32, a pair at a time / infinity onnx, p50 at one connection"
# Ratio -> what is divided (keys of `values`), bar, whether the ratio may be at most the bar
RATIOS = {
    "isosim fp32 / infinity onnx, pairs/s at 64 connections": ("isosim fp32 64", "infinity onnx 64", 2.2, False),
    "isosim fp32 / bare session, sentences/s at 64 connections": ("isosim fp32 64", "bare fp32", 0.9, False),
    "isosim reduced / bare session, sentences/s at 64 connections": ("isosim reduced 64", "bare reduced", 0.8, False),
    "isosim reduced / isosim fp32, pairs/s at 64 connections": ("isosim reduced 64", "isosim fp32 64", 1.0, False),
    "isosim reduced / infinity onnx, pairs/s at 64 connections": ("isosim reduced 64", "infinity onnx 64", INT8, False),
    "isosim bf16 / isosim fp32, pairs/s at 64 connections": ("isosim bf16 64", "isosim fp32 64", 1.5, False),
    "isosim bf16 / infinity onnx, pairs/s at 64 connections": ("isosim bf16 64", "infinity onnx 64", 3.0, False),
    "isosim bf16 / isosim fp32, p50 at one connection": ("isosim bf16 p50", "isosim fp32 p50", 0.75, True),
    "isosim fp32, p50 at one connection / bare session's median for the same pairs": (
        "isosim fp32 p50", "bare fp32 p50", 1.2, True,
    ),
    "isosim fp32 / infinity onnx, p50 at one connection": ("isosim fp32 p50", "infinity onnx p50", 0.45, True),
    FLOOR: ("bare fp32 p50", "infinity onnx p50", 0.45, True),
    "isosim fp32, p99 / p50 at one connection": ("isosim fp32 p99", "isosim fp32 p50", 3.0, True),
}  # fmt: skip


def sentence_transformers(setup: Setup) -> dict[str, float] | None:
    """Batch size -> sentences/s of sentence-transformers in process; None if it is not installed."""
    python, checkpoint = setup.peers / "sentence-transformers" / "bin" / "python", setup.peers / "checkpoint"
    if not python.is_file() or not checkpoint.is_file():
        return None
    script = str(servers.ROOT / "loadtest" / "peers" / "in_process.py")
    command = [str(python), script, checkpoint.read_text().strip(), str(setup.seconds)]
    texts = json.dumps([text for pair in setup.pairs for text in pair][: bare_session.STREAM]).encode()
    done = subprocess.run(command, input=texts, stdout=subprocess.PIPE, check=True)  # noqa: S603 - ours
    found: dict[str, float] = json.loads(done.stdout)
    return found


def contestants(setup: Setup, stack: ExitStack) -> Contestants:
    """Starts every available server, with the same pairs. A stream goes on from one measurement to the next."""
    found = {}
    for name, encoder in setup.encoders.items():
        server = stack.enter_context(servers.own_isosim(setup.store, encoder, **UNCACHED))
        found[f"isosim {name}"] = server, itertools.cycle(texts.in_requests(setup.pairs))
    binary, model = setup.peers / "infinity" / "bin" / "infinity_emb", setup.peers / "infinity-model"
    if binary.is_file() and model.is_dir():
        bodies = [orjson.dumps({"model": model.name, "input": pair}) for pair in setup.pairs]
        for name, engine in {"infinity onnx": "optimum", "infinity torch": "torch"}.items():
            server = stack.enter_context(servers.infinity(binary, model, engine))
            found[name] = server, itertools.cycle([request("/embeddings", body) for body in bodies])
    return found


def by_length(setup: Setup, everyone: Contestants) -> dict[int, dict[str, float]]:
    """Tokens of a text -> pairs/s of each server of isosim, in requests of 8 pairs on 4 connections."""
    found = {}
    for tokens in TOKENS:
        pairs = texts.pairs_of_length(setup.data, itertools.repeat(tokens), 1024)
        requests = itertools.cycle(texts.in_requests(pairs, 8))
        loads = in_turn({name: (server, requests) for name, (server, _) in everyone.items()}, 4, setup.seconds)
        found[tokens] = {name: 8 * load.rate for name, load in loads.items()}
    return found


def measure(setup: Setup) -> Result:
    loads: dict[str, dict[int, list[Load]]] = defaultdict(lambda: defaultdict(list))
    bare: dict[str, list[bare_session.Rates]] = defaultdict(list)
    exported = {name: EncoderStore.at(setup.store).find(encoder) for name, encoder in setup.encoders.items()}
    artifacts = {name: one for name, one in exported.items() if one.spec.number_format != "bf16"}
    sentences = [text for pair in setup.pairs for text in pair]
    with ExitStack() as stack:
        everyone = contestants(setup, stack)
        for _ in range(setup.rounds):
            for connections in CONNECTIONS:
                for name, load in in_turn(everyone, connections, setup.seconds).items():
                    loads[name][connections].append(load)
            with servers.paused([server for server, _ in everyone.values()]):
                for name, artifact in artifacts.items():  # on ONNX Runtime
                    bare[name].append(bare_session.measure(artifact, sentences, 2 * setup.seconds))
                in_process = sentence_transformers(setup)
        with servers.paused([server for name, (server, _) in everyone.items() if name not in OURS]):
            lengths = by_length(setup, {name: everyone[name] for name in OURS if name in everyone})
    values: dict[str, list[float]] = {}  # one for each round
    for name, by in loads.items():
        values |= {f"{name} {connections}": [load.rate for load in rounds] for connections, rounds in by.items()}
        values |= {f"{name} p{percent}": [load.percentile(percent) for load in by[1]] for percent in (50, 99)}
    for name, rounds in bare.items():
        values[f"bare {name}"] = [bare_session.best(found) / 2 for found in rounds]  # a pair has two sentences
        values[f"bare {name} p50"] = [found[bare_session.PAIR]["median_ms"] for found in rounds]
    middle = {name: {c: sorted(found, key=lambda load: load.rate)[len(found) // 2] for c, found in by.items()}
              for name, by in loads.items()}  # fmt: skip
    return {
        "loads": {name: {c: load.summary() for c, load in by.items()} for name, by in middle.items()},
        "bare": {
            name: {"best_sentences_per_second": 2 * median(values[f"bare {name}"]), "rounds": rounds}
            for name, rounds in bare.items()
        },
        "sentence_transformers_in_process": in_process,
        "pairs_by_tokens": lengths,
        "ratios": {
            name: divided(values[above], values[below])
            for name, (above, below, _, _) in RATIOS.items()
            if above in values and below in values
        },
    }


def lines(result: Result) -> list[Line]:
    return [
        Line(name, median(found), *RATIOS[name][2:], note="no server can be faster than this" if name == FLOOR else "")
        for name, found in result["ratios"].items()
    ]
