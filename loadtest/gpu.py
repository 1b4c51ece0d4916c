"""Measures the service's graphs on a GPU machine: `python -m loadtest.gpu --store model_store`.

For the exported encoder at fp32 and fp16, measures tokens/s, the latency of a single text, the calibrator's share of
the computing time, and requests over HTTP (`--data`). For comparison, measures tokens/s of torch on the same weights
(`--checkpoint`), at fp16 with fused attention, not compiled and compiled. Needs onnxruntime-gpu, and torch with CUDA
for the comparison. `--providers CPUExecutionProvider` runs it without a GPU.
"""

import argparse
import json
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from loadtest import servers, texts
from loadtest.bench import hardware
from loadtest.setup import UNCACHED, drive
from service.adapters.encoder.onnx_engine import OnnxCalibrator, OnnxEncoder
from service.adapters.encoder.store import EncoderArtifact, EncoderStore
from service.modelling.calibration.linear import identity
from service.modelling.calibration.methods import weights_of

LENGTHS = (16, 64, 128, 512)
TOKENS = 16384  # per batch


def gpu_name() -> str:
    with suppress(OSError, subprocess.CalledProcessError):
        command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603
    return "none"


def per_second(run: Callable[[], object], seconds: float) -> float:
    """Runs per second, after three unmeasured runs."""
    for _ in range(3):
        run()
    done, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        run()
        done += 1
    return done / spent


def percentiles(run: Callable[[], object], count: int = 300) -> dict[str, float]:
    for _ in range(20):
        run()
    spent = []
    for _ in range(count):
        began = time.perf_counter()
        run()
        spent.append(1e3 * (time.perf_counter() - began))
    return {"p50_ms": round(float(np.percentile(spent, 50)), 3), "p99_ms": round(float(np.percentile(spent, 99)), 3)}


def ids_of(count: int, length: int) -> list[list[int]]:
    rng = np.random.default_rng(0)
    found: list[list[int]] = rng.integers(5, 300, (count, length)).tolist()
    return found


def onnx_figures(artifact: EncoderArtifact, providers: list[str], tokens: int, seconds: float) -> dict[str, Any]:
    """Tokens/s by length, latency of one text of 16 tokens, and the calibrator's share of the time."""
    encoder = OnnxEncoder(artifact.encoder, providers, 0, artifact.spec.pad_token_id)
    calibrator = OnnxCalibrator(artifact.calibrator, providers).bind(weights_of(identity(artifact.spec.dim)))
    found: dict[str, Any] = {"tokens_per_second": {}, "calibrator_share": {}}
    for length in (length for length in LENGTHS if length <= artifact.spec.max_length):
        count = max(1, tokens // length)
        prepared = encoder.prepare(ids_of(count, length))
        pooled = encoder.run(prepared)
        runs = per_second(lambda prepared=prepared: encoder.run(prepared), seconds)  # type: ignore[misc]
        behind = per_second(lambda pooled=pooled: calibrator(pooled), seconds / 4)  # type: ignore[misc]
        found["tokens_per_second"][length] = round(runs * count * length)
        found["calibrator_share"][length] = round((1 / behind) / (1 / runs + 1 / behind), 4)
    one = encoder.prepare(ids_of(1, 16))
    found["latency_of_one"] = percentiles(lambda: encoder.run(one))
    return found


def torch_figures(checkpoint: Path, longest: int, tokens: int, seconds: float) -> dict[str, Any]:
    """Tokens/s of the same checkpoint in torch at fp16 with fused attention, plain and compiled."""
    import torch  # noqa: PLC0415 - only for the comparison
    from transformers import AutoModel  # noqa: PLC0415

    device = "cuda" if torch.cuda.is_available() else "cpu"
    kind = torch.float16 if device == "cuda" else torch.float32
    model = AutoModel.from_pretrained(checkpoint, attn_implementation="sdpa", dtype=kind).to(device).eval()
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


def http_figures(store: Path, encoder: str, providers: list[str], data: Path, seconds: float) -> dict[int, Any]:
    import itertools  # noqa: PLC0415

    requests = texts.single_pairs(texts.sts_pairs(data))
    settings: dict[str, Any] = {**UNCACHED, "providers": json.dumps(providers)}
    with servers.own_store(store, encoder) as own, servers.isosim(own, encoder, **settings) as server:
        return {c: drive(server.port, itertools.cycle(requests), c, seconds).summary() for c in (1, 64, 256)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, default=servers.ROOT / "model_store")
    parser.add_argument("--encoders", default="minilm,minilm-fp16", help="ids in the store; missing ones are skipped")
    parser.add_argument("--checkpoint", type=Path, help="folder with the same weights, to compare with torch")
    parser.add_argument("--data", type=Path, help="folder with the test data, for requests over HTTP")
    parser.add_argument("--providers", default="CUDAExecutionProvider,CPUExecutionProvider")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="per batch")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "gpu.json")
    given = parser.parse_args()
    with suppress(AttributeError):
        ort.preload_dlls()  # loads CUDA's libraries from torch's wheels
    providers = given.providers.split(",")
    found: dict[str, Any] = {"hardware": hardware() | {"gpu": gpu_name()}, "providers": providers, "encoders": {}}
    for name in given.encoders.split(","):
        if not (given.store / "encoders" / name).is_dir():
            continue
        artifact = EncoderStore(given.store).find(name)
        found["encoders"][name] = onnx_figures(artifact, providers, given.tokens, given.seconds)
        if given.data is not None:
            found["encoders"][name]["http"] = http_figures(given.store, name, providers, given.data, given.seconds)
    if given.checkpoint is not None:
        found["torch"] = torch_figures(given.checkpoint, 512, given.tokens, given.seconds)
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
