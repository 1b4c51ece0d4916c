"""Encoders trained with SimCSE and SBERT, before and after post-processing, by isosim's own commands."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.corpora import Bench, Row
from isosim.errors import BackendFailure
from isosim.jobs.text_lines import read_lines

METHODS = "identity,whitening,flow,auto"
LIFT = 8.0  # smallest gain that SimCSE must reach over the raw encoder, in mean Spearman × 100
RAW, WHOLE = "minilm-layers3-mean", "minilm"
CUT = ["--layers", "3", "--pooling", "mean"]
LONGEST = 16  # maximum number of words in SimCSE's sentences, so that the training takes only minutes
# These settings were chosen only on STS-B dev; docs/decisions/training.md gives the reasons.
SIMCSE = [
    *CUT, "--word-deletion", "0.8", "--batch-size", "1024", "--learning-rate", "1e-3", "--warmup", "0.1",
    "--steps", "30", "--every", "5",
]  # fmt: skip
SBERT = [
    "--pooling", "mean", "--batch-size", "32", "--learning-rate", "1e-4", "--warmup", "0.1", "--steps", "180",
    "--every", "30", "--max-length", "64",
]  # fmt: skip


def isosim(*words: str) -> Any:
    """The JSON that a command prints. Raises BackendFailure if it fails."""
    command = [sys.executable, "-m", "isosim.cli", *words, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)  # noqa: S603 - our own interpreter
    if done.returncode:
        raise BackendFailure(f"isosim {words[0]} ended with {done.returncode}")
    return json.loads(done.stdout)


def trained_encoders(bench: Bench, work: str, seeds: str = "0,1") -> Iterator[Row]:
    """Trains encoders in the folder `work`, and evaluates each with identity, whitening, a flow and `auto`.

    The encoders are MiniLM, its first 3 layers ("raw"), and these trained by SimCSE (once a seed), by SBERT, and by
    SimCSE and then SBERT. Encoders and results that are already in the folder are reused.
    """
    folder = Path(work)
    folder.mkdir(parents=True, exist_ok=True)
    commands = trainings(bench.data, folder, seeds.split(","))
    exports = {RAW: ["--encoder", WHOLE, *CUT], **{name: ["--encoder", str(folder / name)] for name in commands}}
    exports[WHOLE] = ["--encoder", WHOLE]
    means: dict[tuple[str, str], float] = {}
    for name, options in exports.items():
        if name in commands:
            facts = isosim("train", *commands[name])
            before, kept = (f"{100 * facts[key]:.2f}" for key in ("dev_before", "dev_kept"))
            yield {"encoder": name, "method": f"STS-B dev: {before}, trained {kept}, step {facts['steps_kept']}"}
        isosim("export", *options, "--id", name, "--model-store", str(folder / "store"))
        for row in evaluated(folder, name, bench.data / "sts"):
            means[name, row["method"]] = row["mean"]
            yield row
    yield from promises(means, [name for name in commands if name.startswith("simcse-seed")])


def trainings(data: Path, folder: Path, seeds: list[str]) -> dict[str, list[str]]:
    """Name of a trained encoder, which is also its folder's -> arguments of `isosim train`."""
    text, graded = str(short_sentences(data, folder)), str(data / "sts/stsb/train.tsv")
    words = {f"simcse-seed{seed}": ["simcse", text, "--encoder", WHOLE, *SIMCSE, "--seed", seed] for seed in seeds}
    first = str(folder / next(iter(words)))
    words["sbert"] = ["regression", graded, "--encoder", WHOLE, "--layers", "3", *SBERT]
    words["simcse-sbert"] = ["regression", graded, "--encoder", first, *SBERT]
    dev = str(data / "sts/stsb/dev.tsv")
    return {name: [*own, "--dev", dev, "--output", str(folder / name)] for name, own in words.items()}


def short_sentences(data: Path, folder: Path) -> Path:
    """File with the distinct sentences of at most `LONGEST` words, sorted, because their order decides the weights."""
    file = folder / "short.txt"
    lines = read_lines(data / "text/wikipedia-en.txt")
    kept = sorted({line for line in lines if 0 < len(line.split()) <= LONGEST})
    file.write_text("\n".join(kept) + "\n", encoding="utf-8")
    return file


def evaluated(folder: Path, encoder: str, sts: Path) -> Iterator[Row]:
    """Spearman × 100 on each set, for each method; `auto` names the methods that it chose."""
    file = folder / f"{encoder}.json"
    if not file.is_file():
        where = ["--encoder", encoder, "--model-store", str(folder / "store")]
        found = isosim("evaluate", "--sts", str(sts), "--methods", METHODS, *where)
        file.write_text(json.dumps(found), encoding="utf-8")
    for one in json.loads(file.read_text(encoding="utf-8")):
        chosen = ", ".join(one["fitted"].values()) if one["method"] == "auto" else ""
        mean = float(np.mean(list(one["all"].values())))
        yield {"encoder": encoder, "method": one["method"], **one["all"], "mean": mean, "chosen": chosen}


def promises(means: dict[tuple[str, str], float], simcse: list[str]) -> Iterator[Row]:
    """What the trainings must reach on the STS sets, which were not used to choose settings or weights.

    `means`: (encoder, method) -> mean of the seven sets.
    """
    raw, best = means[RAW, "identity"], means[simcse[0], "auto"]
    bars = {f"{name}: gain over the raw encoder": (means[name, "identity"] - raw, LIFT) for name in simcse}
    bars["SimCSE and auto, against SimCSE alone"] = best, means[simcse[0], "identity"]
    bars["SimCSE and auto, against auto alone on the raw encoder"] = best, means[RAW, "auto"]
    for said, (value, bar) in bars.items():
        yield {"encoder": said, "mean": value, "bar": bar, "kept": value >= bar}
