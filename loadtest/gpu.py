"""The encoders on a GPU: vectors, tokens/s, latency, and several servers that share the GPU.

Needs onnxruntime-gpu, and an encoder at fp16 as the reduced one. Runs without a GPU with `--engine
CPUExecutionProvider`. With `--config`, also measures torch with fused attention on a model of the same shape.
"""

import itertools
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from timeit import timeit
from typing import Any

import numpy as np

from isosim.arrays import Vectors
from isosim.encoders.batching import BatchingPlan
from isosim.encoders.engines import open_encoder
from isosim.encoders.onnx_engine import load_cuda
from isosim.encoders.spec import Engine
from isosim.encoders.store import EncoderArtifact, EncoderStore
from isosim.encoders.tokenizer import FastTokenizer
from isosim.scoring.similarity import cosine
from loadtest import servers, texts
from loadtest.bench import from_driver
from loadtest.client import Load
from loadtest.measuring import UNCACHED, Line, Result, Setup, drive
from loadtest.servers import Server

LENGTHS = (16, 64, 128, 256)
BATCHES = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)  # padded tokens
PAIRS = 500  # pairs on which cosines are compared
REQUESTS = {1: 64, 32: 16}  # pairs in a request -> connections to each server
WARM = 2.0  # s
FAILED = "failed requests"


def per_second(run: Callable[[], object], seconds: float) -> float:
    """Runs per second, after three unmeasured runs."""
    for _ in range(3):
        run()
    done, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        run()
        done += 1
    return done / spent


def ids_of(count: int, length: int) -> list[list[int]]:
    ids: list[list[int]] = np.random.default_rng(0).integers(5, 300, (count, length)).tolist()
    return ids


def opened(artifact: EncoderArtifact, engine: Engine) -> Any:
    return open_encoder(artifact.encoder, artifact.spec, engine, BatchingPlan(threads=0))


def tokens_per_second(encoder: Any, length: int, tokens: int, seconds: float) -> int:
    """Tokens/s with batches of `tokens` tokens. All texts have `length` tokens."""
    ids = ids_of(max(1, tokens // length), length)
    prepared = encoder.prepare(ids)
    return round(per_second(lambda: encoder.run(prepared), seconds) * len(ids) * length)


def of_encoder(setup: Setup, artifact: EncoderArtifact) -> Result:
    encoder = opened(artifact, setup.engine)
    one = encoder.prepare(ids_of(1, 16))
    found: Result = {
        f"tokens/s, texts of {length} tokens": tokens_per_second(encoder, length, setup.tokens, setup.seconds)
        for length in LENGTHS if length <= artifact.spec.max_length
    }  # fmt: skip
    for size in (size for size in BATCHES if size <= 4 * setup.tokens):
        speed = tokens_per_second(encoder, 16, size, setup.seconds / 2)
        found[f"tokens/s, texts of 16 tokens, {size:,} tokens in a batch"] = speed
    spent = [timeit(lambda: encoder.run(one), number=1) for _ in range(320)][20:]
    return found | {"a run of one text of 16 tokens, p50 / p99 (ms)": (1e3 * np.percentile(spent, [50, 99])).tolist()}


def of_cosines(setup: Setup, artifact: EncoderArtifact, reference: Any) -> Result:
    """Compares cosines with those of `reference`, and of texts that are encoded one by one and in batches of 64."""
    encoder = opened(artifact, setup.engine)
    tokenize = FastTokenizer(artifact.tokenizer, artifact.spec.max_length)
    ids = [list(tokens.ids) for tokens in tokenize([text for pair in setup.pairs[:PAIRS] for text in pair], "right")]

    def cosines(run: Any, size: int) -> Vectors:
        vectors = np.concatenate([run(ids[start : start + size]) for start in range(0, len(ids), size)])
        return cosine(vectors[0::2], vectors[1::2])

    alone, together = cosines(encoder, 1), cosines(encoder, 64)
    off = np.abs(alone - cosines(reference, 1))
    return {
        "largest difference between a cosine here and at fp32 on the CPU": float(off.max()),
        "mean of these differences": float(off.mean()),
        "largest change of a cosine by the other 63 texts of a batch": float(np.abs(together - alone).max()),
    }


def send(server: Server, pairs: list[texts.Pair], size: int, seconds: float) -> Load:
    """Sends requests of `size` pairs for `seconds`. Runs in a process of its own."""
    return drive(server, itertools.cycle(texts.in_requests(pairs, size)), REQUESTS[size], seconds, warm=WARM)


def of_servers(setup: Setup, encoder: str, count: int) -> Result:
    """Pairs/s of `count` servers that share the GPU, each with a client process and no cache."""
    settings: dict[str, Any] = {**UNCACHED, "engine": setup.engine, "max_wait": 5}
    found: Result = {}
    with ExitStack() as stack:
        before = from_driver("memory.used")
        opened = [servers.own_isosim(setup.store, encoder, **settings) for _ in range(count)]
        running = [stack.enter_context(server) for server in opened]
        pool = stack.enter_context(ProcessPoolExecutor(count, multiprocessing.get_context("spawn")))
        for started in [pool.submit(time.sleep, 1) for _ in running]:
            started.result()
        for size in REQUESTS:
            sent = [
                pool.submit(send, server, setup.pairs[place * 1000 :] + setup.pairs, size, setup.seconds)
                for place, server in enumerate(running)
            ]
            time.sleep(WARM + setup.seconds / 2)
            busy = from_driver("utilization.gpu")
            loads = [one.result() for one in sent]
            pairs = size * sum(load.rate for load in loads)
            spent = sum(load.server_cpu for load in loads) / sum(len(load.statuses) for load in loads)
            what = f"HTTP, servers: {count}, pairs in a request: {size}"
            found[f"{what}; pairs/s"] = round(pairs)
            p50 = float(np.median([load.percentile(50) for load in loads]))
            found[f"{what}; p50 / p99 (ms)"] = [round(p50, 1), round(max(load.percentile(99) for load in loads), 1)]
            found[f"{what}; processor time of a pair (ms)"] = round(1e3 * spent / size, 3)
            found[f"{what}; GPU busy (%)"] = float(busy) if busy else None
            found[f"{what}; {FAILED}"] = sum(load.failed for load in loads)
        used = from_driver("memory.used")
        what = f"HTTP, servers: {count}"
        found[f"{what}; resident memory of each (MiB)"] = round(max(server.resident() for server in running) / 2**20)
        found[f"{what}; GPU memory of each (MiB)"] = round((int(used) - int(before)) / count) if used else None
    return found


def of_torch(setup: Setup, config: Path, longest: int) -> dict[str, Result]:
    """Tokens/s of torch with fused attention, with and without compiling. The model has random weights."""
    import torch  # noqa: PLC0415 - only for the comparison
    from transformers import AutoConfig, AutoModel  # noqa: PLC0415

    device = "cuda" if torch.cuda.is_available() else "cpu"
    kind = torch.float16 if device == "cuda" else torch.float32
    model: Any = AutoModel.from_config(AutoConfig.from_pretrained(config), attn_implementation="sdpa")  # type: ignore[no-untyped-call]
    model = model.to(device, kind).eval()
    found: dict[str, Result] = {"torch": {}, "torch, compiled": {}}
    for column, forward in zip(found.values(), (model, torch.compile(model, dynamic=False)), strict=True):
        for length in (length for length in LENGTHS if length <= longest):
            ids = torch.tensor(ids_of(max(1, setup.tokens // length), length), device=device)

            def run(forward: Any = forward, ids: Any = ids) -> Any:
                with torch.inference_mode():
                    hidden = forward(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
                    return hidden.mean(1).float().cpu()

            column[f"tokens/s, texts of {length} tokens"] = round(per_second(run, setup.seconds) * ids.numel())
    return found


def measure(setup: Setup) -> Result:
    load_cuda()
    artifacts = {name: EncoderStore.at(setup.store).find(name) for name in setup.encoders.values()}
    reference = opened(artifacts[setup.encoder], "onnxruntime")
    columns: dict[str, Result] = {}
    for name, artifact in artifacts.items():
        columns[name] = of_encoder(setup, artifact) | of_cosines(setup, artifact, reference)
        for count in setup.servers:
            columns[name] |= of_servers(setup, name, count)
    if setup.config is not None:
        columns |= of_torch(setup, setup.config, artifacts[setup.encoder].spec.max_length)
    return {"columns": columns}


def lines(result: Result) -> list[Line]:
    failed = sum(column[name] for column in result["columns"].values() for name in column if name.endswith(FAILED))
    return [Line("GPU: failed requests", failed, 0, at_most=True)]
