"""`python -m loadtest.bench`: starts servers, sends load, prints tables, and writes results as JSON."""

import argparse
import dataclasses
import importlib
import json
import os
import platform
import subprocess
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

import onnxruntime

from isosim.encoders.spec import Engine
from loadtest.measuring import Line, Result, Setup

HERE = Path(__file__).parent
PARTS = ("throughput", "host", "cached", "overload", "stall", "swap", "calibration", "memory")
LONG = ("soak", "gpu")  # run only if they are named


def from_driver(fields: str) -> str:
    """What the GPU's driver says; empty without a GPU."""
    with suppress(OSError, subprocess.CalledProcessError):
        command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603
    return ""


def hardware() -> dict[str, str | int]:
    lines = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
    info = {name.strip(): value.strip() for name, _, value in lines}
    known = [
        flag
        for flag in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8")
        if flag in info.get("flags", "").split()
    ]
    gpu, _, driver = from_driver("name,driver_version").partition(", ")
    found = {"processor": info.get("model name", "?"), "cores": len(os.sched_getaffinity(0)),
             "instructions": " ".join(known), "python": platform.python_version(),
             "onnxruntime": onnxruntime.__version__}  # fmt: skip
    return found | ({"gpu": gpu, "driver": driver} if gpu else {})


def arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, *LONG, []], help=f"default: all but {', '.join(LONG)}")
    parser.add_argument("--data", type=Path, default=HERE.parents[1] / "shared" / "data")
    parser.add_argument("--store", type=Path, default=HERE.parent / "model_store")
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--reduced", help="id of the same encoder at fp16 or int8; default: -fp16, -int8")
    parser.add_argument("--bf16", help="id of the same encoder at bf16; default: -bf16")
    parser.add_argument("--peers", type=Path, default=HERE / "peers" / "environments")
    parser.add_argument("--seconds", type=float, default=6.0, help="duration of one measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--minutes", type=float, help="of mixed load; default: 10 for memory, 30 for soak")
    parser.add_argument("--engine", default="cuda", choices=get_args(Engine), help="for gpu")
    parser.add_argument("--servers", type=int, nargs="+", default=[1, 2, 4], help="for gpu: servers that share it")
    parser.add_argument("--tokens", type=int, default=16384, help="for gpu: padded tokens in a batch")
    parser.add_argument("--config", type=Path, help="for gpu: folder with a config.json, to measure torch too")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    """Runs the parts; the exit code is 0 if all measured values meet their limits."""
    given = arguments(words)
    there = {path.name.removeprefix(f"{given.encoder}-"): path.name for path in (given.store / "encoders").iterdir()}
    given.reduced = given.reduced or there.get("fp16") or there.get("int8")
    given.bf16 = given.bf16 or there.get("bf16")
    setup = Setup(**{field.name: getattr(given, field.name) for field in dataclasses.fields(Setup)})
    given.results.mkdir(parents=True, exist_ok=True)
    holds = True
    for part in given.parts or PARTS:
        began = time.monotonic()
        module = importlib.import_module(f"loadtest.{part}")
        result: Result = module.measure(setup)
        lines: list[Line] = module.lines(result)
        record = {"part": part, "when": datetime.now(UTC).isoformat(timespec="seconds"), "hardware": hardware()}
        record |= {"encoder": given.encoder, "reduced": given.reduced, "seconds": given.seconds, "rounds": given.rounds}
        record |= {"lines": [dataclasses.asdict(line) | {"holds": line.holds} for line in lines], "result": result}
        (given.results / f"{part}.json").write_text(json.dumps(record, indent=1, default=str) + "\n")
        print(f"{part}: {time.monotonic() - began:.0f} s")
        for line in lines:
            bar = f"{'≤' if line.at_most else '≥'} {line.bar:g}{line.unit}"
            verdict = line.note or ("holds" if line.holds else "SHORT")
            print(f"  {line.name}: {line.value:.3g}{line.unit} ({bar}) {verdict}", flush=True)
            holds = holds and (line.holds or bool(line.note))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
