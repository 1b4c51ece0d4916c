"""`python -m loadtest.bench`: starts servers, sends load, prints tables, and writes results as JSON and PNG."""

import argparse
import dataclasses
import importlib
import json
import os
import platform
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import onnxruntime
from rich.console import Console
from rich.table import Table

from loadtest import figures, texts
from loadtest.setup import Line, Result, Setup

PARTS = (
    "invariance",
    "throughput",
    "mixed",
    "cached",
    "host",
    "remote",
    "calibration",
    "swap",
    "domains",
    "many",
    "bucket",
    "resident",
    "overload",
    "stall",
    "pipelining",
    "greedy",
    "memory",
    "peak",
    "growth",
    "capacity",
    "logs",
    "bulk",
)
HERE = Path(__file__).parent


def hardware() -> dict[str, str | int]:
    info = Path("/proc/cpuinfo").read_text()
    model = next((line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")), "?")
    flags = next((line.partition(":")[2].split() for line in info.splitlines() if line.startswith("flags")), [])
    known = [flag for flag in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8") if flag in flags]
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "instructions": " ".join(known),
        "python": platform.python_version(),
        "onnxruntime": onnxruntime.__version__,
    }


def reduced_of(store: Path, fp32: str) -> str | None:
    """Id of the encoder that `isosim export --precision` added to the store; None if there is none."""
    found = sorted(
        folder.name for folder in (store / "encoders").glob(f"{fp32}-*") if folder.name[len(fp32) + 1 :] in REDUCED
    )
    return found[0] if found else None


REDUCED = ("int8", "bf16", "fp16")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="parts to measure; default: all")
    parser.add_argument("--data", type=Path, default=HERE.parents[1] / "shared" / "data")
    parser.add_argument("--store", type=Path, default=HERE.parent / "model_store")
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--reduced", help="id of the same encoder at a lower precision; default: found by name")
    parser.add_argument("--peers", type=Path, default=HERE / "peers" / "environments")
    parser.add_argument("--seconds", type=float, default=6.0, help="duration of one measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--soak", type=float, default=600.0, help="seconds of mixed load for the measurement of memory")
    parser.add_argument("--sentences", type=int, default=1_000_000, help="number of sentences for `isosim bulk embed`")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    return parser.parse_args()


def main() -> int:
    """Runs the parts; the exit code is 0 if all measured values meet their limits."""
    given = arguments()
    reduced = given.reduced or reduced_of(given.store, given.encoder)
    setup = Setup(
        given.data, given.store, given.encoder, reduced, given.peers, given.seconds, given.rounds, given.soak,
        texts.sts_pairs(given.data), given.sentences,
    )  # fmt: skip
    console = Console()
    given.results.mkdir(parents=True, exist_ok=True)
    every: list[Line] = []
    for part in given.parts or PARTS:
        began = time.monotonic()
        module = importlib.import_module(f"loadtest.{part}")
        result: Result = module.measure(setup)
        lines: list[Line] = module.lines(result)
        every += lines
        verdicts = [dataclasses.asdict(line) | {"holds": line.holds} for line in lines]
        record = {"part": part, "when": datetime.now(UTC).isoformat(timespec="seconds"), "hardware": hardware()}
        record |= {"encoder": given.encoder, "reduced": reduced, "seconds": given.seconds, "rounds": given.rounds}
        content = json.dumps(record | {"lines": verdicts, "result": result}, indent=1, default=str)
        (given.results / f"{part}.json").write_text(content + "\n")
        console.print(f"{part}: {time.monotonic() - began:.0f} s", highlight=False)
        console.print(table(lines))
    figures.draw(given.results)
    return 0 if all(line.holds for line in every if not line.note) else 1


def table(lines: list[Line]) -> Table:
    drawn = Table("", "measured", "bar", "", show_edge=False)
    for line in lines:
        bar = f"{'≤' if line.at_most else '≥'} {line.bar:g}{line.unit}"
        drawn.add_row(line.name, f"{line.value:.3g}{line.unit}", bar, line.note or ("holds" if line.holds else "SHORT"))
    return drawn


if __name__ == "__main__":
    sys.exit(main())
