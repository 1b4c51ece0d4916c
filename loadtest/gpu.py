"""Measures the service on a GPU machine: `python -m loadtest.gpu --data DATA --output FILE`.

Measures for each encoder:

- the difference between its cosines and those of fp32 on the CPU
- tokens/s by text length and by batch size, latency of one text, and time of the first run of a new shape
- time of the calibrator on GPU and CPU
- pairs/s over HTTP with several servers on the GPU, and memory of each server

With `--config`, also measures torch with fused attention on a model of the same shape. Needs onnxruntime-gpu, or runs
without a GPU with `--providers CPUExecutionProvider`.
"""

import argparse
import itertools
import json
import multiprocessing
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np

from isosim.arrays import Vectors
from isosim.encoders.onnx_engine import OnnxCalibrator, OnnxEncoder, load_cuda
from isosim.encoders.store import EncoderArtifact, EncoderStore
from isosim.encoders.tokenizer import FastTokenizer
from isosim.fitting.linear import identity
from isosim.fitting.methods import weights_of
from isosim.scoring.similarity import cosine
from loadtest import servers, texts
from loadtest.bench import hardware
from loadtest.client import request
from loadtest.setup import UNCACHED, drive

LENGTHS = (16, 64, 128, 256)
BATCHES = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)  # padded tokens
TOKENS = 16384  # padded tokens in a batch, if the batch size is fixed
PAIRS = 500  # pairs on which cosines are compared
REQUESTS = {1: 64, 32: 16}  # pairs in a request -> connections to each server
ROWS = (2, 64, 512)  # texts in a request of 1, 32 and 256 pairs
CPU = ["CPUExecutionProvider"]


def from_driver(fields: str) -> str:
    with suppress(OSError, subprocess.CalledProcessError):
        command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603
    return ""


def per_second(run: Callable[[], object], seconds: float) -> float:
    """Runs per second, after three unmeasured runs."""
    for _ in range(3):
        run()
    done, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        run()
        done += 1
    return done / spent


def milliseconds(run: Callable[[], object], count: int) -> list[float]:
    spent = []
    for _ in range(count):
        began = time.perf_counter()
        run()
        spent.append(1e3 * (time.perf_counter() - began))
    return spent


def percentiles(spent: Sequence[float]) -> dict[str, float]:
    return {f"p{q}_ms": round(float(np.percentile(spent, q)), 3) for q in (50, 99)} | {"max_ms": round(max(spent), 3)}


def ids_of(count: int, length: int) -> list[list[int]]:
    rng = np.random.default_rng(0)
    ids: list[list[int]] = rng.integers(5, 300, (count, length)).tolist()
    return ids


def tokens_per_second(encoder: OnnxEncoder, length: int, tokens: int, seconds: float) -> int:
    """Tokens/s with batches of `tokens` tokens. All texts have `length` tokens."""
    count = max(1, tokens // length)
    prepared = encoder.prepare(ids_of(count, length))
    return round(per_second(lambda: encoder.run(prepared), seconds) * count * length)


def agreement(encoder: OnnxEncoder, reference: OnnxEncoder, ids: list[list[int]]) -> dict[str, float]:
    """Compares cosines of pairs of texts.

    Returns the largest and the mean difference from the cosines of `reference`. `by_batch` is the largest difference
    between cosines of texts that are encoded one by one and in batches of 64.
    """

    def cosines(vectors: Vectors) -> Vectors:
        return cosine(vectors[0::2], vectors[1::2])

    expected = cosines(np.concatenate([reference([row]) for row in ids]))
    alone = cosines(np.concatenate([encoder([row]) for row in ids]))
    together = cosines(np.concatenate([encoder(ids[start : start + 64]) for start in range(0, len(ids), 64)]))
    off = np.abs(alone - expected)
    return {"largest": float(off.max()), "mean": float(off.mean()), "by_batch": float(np.abs(together - alone).max())}


def first_runs(artifact: EncoderArtifact, providers: list[str]) -> dict[str, Any]:
    """Percentiles of the time (ms) of the first and the second run of each shape, in a new session, in random order."""
    encoder = OnnxEncoder(artifact.encoder, providers, 0, artifact.spec.pad_token_id)
    encoder(ids_of(2, 16))
    lengths = [length for length in (16, 32, 64, 128) if length <= artifact.spec.max_length]
    shapes = list(itertools.product((1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 256), lengths))
    order = np.random.default_rng(0).permutation(len(shapes))
    batches = [encoder.prepare(ids_of(*shapes[place])) for place in order if np.prod(shapes[place]) <= TOKENS]
    return {
        name: percentiles([milliseconds(lambda batch=batch: encoder.run(batch), 1)[0] for batch in batches])  # type: ignore[misc]
        for name in ("first", "second")
    }


def encoder_figures(artifact: EncoderArtifact, providers: list[str], tokens: int, seconds: float) -> dict[str, Any]:
    encoder = OnnxEncoder(artifact.encoder, providers, 0, artifact.spec.pad_token_id)
    lengths = [length for length in LENGTHS if length <= artifact.spec.max_length]
    one = encoder.prepare(ids_of(1, 16))
    milliseconds(lambda: encoder.run(one), 20)
    return {
        "tokens_per_second": {length: tokens_per_second(encoder, length, tokens, seconds) for length in lengths},
        "of_16_by_batch": {
            size: tokens_per_second(encoder, 16, size, seconds / 2) for size in BATCHES if size <= 4 * tokens
        },
        "latency_of_one": percentiles(milliseconds(lambda: encoder.run(one), 300)),
        "new_shapes": first_runs(artifact, providers),
    }


def calibrator_milliseconds(artifact: EncoderArtifact, providers: list[str], seconds: float) -> dict[int, float]:
    """Time (ms) to calibrate the texts of a request, by number of texts."""
    calibrator = OnnxCalibrator(artifact.calibrator, providers).bind(weights_of(identity(artifact.spec.dim)))
    vectors = np.random.default_rng(0).standard_normal((max(ROWS), artifact.spec.dim), np.float32)
    return {
        rows: round(1e3 / per_second(lambda rows=rows: calibrator(vectors[:rows]), seconds), 3)  # type: ignore[misc]
        for rows in ROWS
    }


def torch_figures(config: Path, longest: int, tokens: int, seconds: float) -> dict[str, Any]:
    """Tokens/s of torch with fused attention, with and without compiling. The model has random weights."""
    import torch  # noqa: PLC0415 - only for the comparison
    from transformers import AutoConfig, AutoModel  # noqa: PLC0415

    device = "cuda" if torch.cuda.is_available() else "cpu"
    kind = torch.float16 if device == "cuda" else torch.float32
    model: Any = AutoModel.from_config(AutoConfig.from_pretrained(config), attn_implementation="sdpa")  # type: ignore[no-untyped-call]
    model = model.to(device, kind).eval()
    found: dict[str, Any] = {}
    for name, forward in (("sdpa", model), ("compiled", torch.compile(model, dynamic=False))):
        found[name] = {}
        for length in (length for length in LENGTHS if length <= longest):
            count = max(1, tokens // length)
            ids = torch.tensor(ids_of(count, length), device=device)
            mask = torch.ones_like(ids)

            def run(forward: Any = forward, ids: Any = ids, mask: Any = mask) -> Any:
                with torch.inference_mode():
                    hidden = forward(input_ids=ids, attention_mask=mask).last_hidden_state
                    return hidden.mean(1).float().cpu()

            found[name][length] = round(per_second(run, seconds) * count * length)
    return found


def send(port: int, pairs: list[texts.Pair], size: int, connections: int, seconds: float) -> dict[str, Any]:
    """Sends requests of `size` pairs for `seconds`. Runs in a separate process."""
    bodies = [texts.body_of(pairs[start : start + size]) for start in range(0, len(pairs) - size, size)]
    requests = itertools.cycle([request("/similarity", body) for body in bodies])
    load = drive(port, requests, connections, seconds, warm=2.0)
    return {**load.summary(), "pairs_per_second": load.rate * size}


def http_figures(
    store: Path, encoder: str, providers: list[str], pairs: list[texts.Pair], count: int, seconds: float
) -> dict[str, Any]:
    """Pairs/s of `count` servers that share the GPU. The servers have no cache. Each has its own client process."""
    settings: dict[str, Any] = {**UNCACHED, "providers": json.dumps(providers), "max_wait": 5}
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        before = from_driver("memory.used")
        running = [
            stack.enter_context(
                servers.isosim(stack.enter_context(servers.own_store(store, encoder)), encoder, **settings)
            )
            for _ in range(count)
        ]
        found["ready_seconds"] = round(max(server.ready for server in running), 2)
        pool = stack.enter_context(ProcessPoolExecutor(count, multiprocessing.get_context("spawn")))
        for ready in [pool.submit(time.sleep, 1) for _ in running]:  # waits until the processes have started
            ready.result()
        for size, connections in REQUESTS.items():
            cpu = [server.processor_seconds() for server in running]
            sent = [
                pool.submit(send, server.port, pairs[place * 1000 :] + pairs, size, connections, seconds)
                for place, server in enumerate(running)
            ]
            time.sleep(2 + seconds / 2)
            busy = from_driver("utilization.gpu")
            loads = [one.result() for one in sent]
            spent = sum(server.processor_seconds() for server in running) - sum(cpu)
            total = sum(load["pairs_per_second"] for load in loads)
            found[f"requests_of_{size}"] = {
                "pairs_per_second": round(total),
                "p50_ms": float(np.median([load["p50_ms"] for load in loads])),
                "p99_ms": max(load["p99_ms"] for load in loads),
                "failed": sum(load["failures"] + load["requests"] - load["statuses"].get("200", 0) for load in loads),
                "cpu_ms_per_pair": round(1e3 * spent / (total * (seconds + 2)), 3),  # includes the warm-up of 2 s
                "gpu_busy_percent": float(busy) if busy else None,
            }
        found["resident_mib"] = round(max(server.resident() for server in running) / 2**20)
        used = from_driver("memory.used")
        found["gpu_mib_per_server"] = round((int(used) - int(before)) / count) if used else None
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, default=servers.ROOT / "model_store")
    parser.add_argument(
        "--encoders", default="minilm,minilm-fp16", help="ids in the store, one of them fp32; missing ones are skipped"
    )
    parser.add_argument(
        "--config", type=Path, help="folder with the config.json of the encoder's checkpoint, to measure torch too"
    )
    parser.add_argument("--data", type=Path, help="folder with the test data, for cosines and requests over HTTP")
    parser.add_argument("--providers", default="CUDAExecutionProvider,CPUExecutionProvider")
    parser.add_argument("--servers", type=int, nargs="+", default=[1, 2, 4], help="that share the GPU; a run of each")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="per batch")
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of a measurement")
    parser.add_argument("--output", type=Path, required=True, help="JSON file for the results")
    given = parser.parse_args()
    load_cuda()
    providers = given.providers.split(",")
    gpu, _, driver = from_driver("name,driver_version").partition(", ")
    found: dict[str, Any] = {"hardware": hardware() | {"gpu": gpu or "none", "driver": driver}, "encoders": {}}
    pairs = [] if given.data is None else texts.sts_pairs(given.data)
    names = [name for name in given.encoders.split(",") if (given.store / "encoders" / name).is_dir()]
    artifacts = {name: EncoderStore.at(given.store).find(name) for name in names}
    fp32 = next(one for one in artifacts.values() if one.spec.precision == "fp32")
    reference = OnnxEncoder(fp32.encoder, CPU, 0, fp32.spec.pad_token_id)
    for name, artifact in artifacts.items():
        own = found["encoders"][name] = encoder_figures(artifact, providers, given.tokens, given.seconds)
        own["calibrator_ms"] = {
            device: calibrator_milliseconds(artifact, names, given.seconds / 4)
            for device, names in (("gpu", providers), ("cpu", CPU))
        }
        if pairs:
            ids = FastTokenizer(artifact.tokenizer, artifact.spec.max_length)(
                [text for pair in pairs[:PAIRS] for text in pair], "right"
            )
            encoder = OnnxEncoder(artifact.encoder, providers, 0, artifact.spec.pad_token_id)
            own["cosines"] = agreement(encoder, reference, [list(tokens.ids) for tokens in ids])
            own["http"] = {
                n: http_figures(given.store, name, providers, pairs, n, given.seconds) for n in given.servers
            }
        given.output.parent.mkdir(parents=True, exist_ok=True)
        given.output.write_text(json.dumps(found, indent=1) + "\n")
    if given.config is not None:
        found["torch"] = torch_figures(given.config, 512, given.tokens, given.seconds)
        given.output.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
