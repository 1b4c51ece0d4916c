"""Compares the speed of `isosim bulk embed` with a bare ONNX Runtime session, and the files of several runs.

A run that was killed and resumed must write the same files as an uninterrupted run. A run on two nodes must write the
same files as a run on one machine.
"""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from isosim.encoders.store import EncoderArtifact, EncoderStore
from isosim.encoders.tokenizer import FastTokenizer
from loadtest import servers
from loadtest.setup import Line, Result, Setup
from loadtest.throughput import STREAM, best

TEXTS = ("wikipedia-en.txt", "reuters-news.txt", "imdb-reviews.txt")
SHORTEST, LONGEST = 6, 9  # words
ON_TWO_NODES = 20_000  # sentences
BAR = 0.85


def short_sentences(data: Path, count: int) -> list[str]:
    """Distinct texts of 6 to 9 words, shuffled. Cut from the beginnings of sentences, then from later parts."""
    sentences = [line.split() for name in TEXTS for line in (data / "text" / name).read_text().splitlines()]
    rng = random.Random(0)  # noqa: S311 - not for security
    found: dict[str, None] = {}
    shift = 0
    while len(found) < count:
        before = len(found)
        for words in sentences:
            length = rng.randint(SHORTEST, LONGEST)
            if len(words) >= shift + SHORTEST:
                found[" ".join(words[shift : shift + length])] = None
        if len(found) == before:
            raise ValueError(f"the text has only {before} distinct runs of words, but {count} are needed")
        shift += 1
    chosen = list(found)[:count]
    rng.shuffle(chosen)
    return chosen


def bare(artifact: EncoderArtifact, texts: list[str], seconds: float, folder: Path) -> dict[str, dict[str, float]]:
    """Results of loadtest.bare_session for the first STREAM texts."""
    tokenize = FastTokenizer(artifact.tokenizer, artifact.spec.max_length)
    stream = folder / "stream.json"
    stream.write_text(json.dumps([tokens.ids for tokens in tokenize(texts[:STREAM], "right")]))
    command = [sys.executable, "-m", "loadtest.bare_session", str(artifact.encoder), str(stream), str(seconds)]
    done = subprocess.run(command, cwd=servers.ROOT, capture_output=True, check=True)  # noqa: S603 - ours
    found: dict[str, dict[str, float]] = json.loads(done.stdout)
    return found


def command(setup: Setup, source: Path, output: Path, *more: str) -> list[str]:
    store = ["--model-store", str(setup.store), "--encoder", setup.fp32]
    embed = ["bulk", "embed", str(source), str(output)]
    return [sys.executable, "-m", "isosim.cli", *embed, *store, "--json", *more]


def embedded(setup: Setup, source: Path, output: Path, *more: str) -> dict[str, Any]:
    """Runs `isosim bulk embed`; returns its JSON output and its duration (`wall_seconds`)."""
    began = time.perf_counter()
    done = subprocess.run(  # noqa: S603 - ours
        command(setup, source, output, *more), cwd=servers.ROOT, stdout=subprocess.PIPE, check=True
    )
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts | {"wall_seconds": round(time.perf_counter() - began, 1)}


def killed(setup: Setup, source: Path, output: Path, files: int) -> int:
    """Runs the command until half of the files are there, then kills it. Returns the number of files."""
    popen = subprocess.Popen(command(setup, source, output), cwd=servers.ROOT, stdout=subprocess.DEVNULL)  # noqa: S603
    while len(list(output.glob("part-*"))) < files / 2:
        if popen.poll() is not None:
            raise RuntimeError(f"the command ended by itself with {popen.returncode}")
        time.sleep(0.01)
    kill_tree(popen.pid)
    popen.wait()
    return len(list(output.glob("part-*")))


def kill_tree(pid: int) -> int:
    """Sends SIGKILL to a process and its descendants; returns their number."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has ended
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    family, new = {pid}, {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - family
        family |= new
    for one in family:
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    return len(family)


def hashes(output: Path) -> dict[str, str]:
    """SHA-256 of every file."""
    found = {}
    for file in sorted(output.glob("part-*")):
        with file.open("rb") as content:
            found[file.name] = hashlib.file_digest(content, "sha256").hexdigest()
    return found


def same(ours: dict[str, str], theirs: dict[str, str]) -> float:
    """Share (0-1) of the file names of both runs for which the files are identical."""
    both = ours.keys() | theirs.keys()
    return sum(ours.get(name) == theirs.get(name) for name in both) / len(both)


def two_nodes(setup: Setup, source: Path, folder: Path) -> dict[str, Any]:
    """Runs the same command on a Ray cluster of two nodes and on a local Ray, and compares the files."""
    from ray.cluster_utils import Cluster  # noqa: PLC0415 - takes a second to import

    alone = embedded(setup, source, folder / "alone")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        together = embedded(setup, source, folder / "together", "--address", cluster.address)
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]
    share = same(hashes(folder / "alone"), hashes(folder / "together"))
    return {"files": together["files"], "same": share, "alone": alone, "together": together}


def write(texts: list[str], file: Path) -> Path:
    pq.write_table(pa.table({"text": texts}), file)
    return file


def measure(setup: Setup) -> Result:
    artifact = EncoderStore.at(setup.store).find(setup.fp32)
    texts = short_sentences(setup.data, setup.sentences)
    with tempfile.TemporaryDirectory(prefix="isosim-bulk-") as name:
        folder = Path(name)
        source = write(texts, folder / "sentences.parquet")
        before = bare(artifact, texts, 4 * setup.seconds, folder)
        whole = embedded(setup, source, folder / "whole")
        after = bare(artifact, texts, 4 * setup.seconds, folder)
        made = hashes(folder / "whole")
        done = killed(setup, source, folder / "killed", len(made))
        resumed = embedded(setup, source, folder / "killed")
        few = write(texts[:ON_TWO_NODES], folder / "few.parquet")
        nodes = two_nodes(setup, few, folder)
        limit = (best(before) + best(after)) / 2
        return {
            "sentences": len(texts),
            "encoder": setup.fp32,
            "bare": {"before": before, "after": after, "sentences_per_second": limit},
            "bulk": whole,
            "ratio": len(texts) / whole["seconds"] / limit,
            "ratio_with_start": len(texts) / whole["wall_seconds"] / limit,
            "killed": {"files": done, "resumed": resumed, "same": same(made, hashes(folder / "killed"))},
            "two_nodes": nodes,
        }


def lines(result: Result) -> list[Line]:
    count = f"{result['sentences']:,} sentences"
    return [
        Line(f"bulk embed / bare session, {count}", result["ratio"], BAR),
        Line(f"bulk embed / bare session, {count}, with start and end of the command", result["ratio_with_start"], BAR),
        Line("killed and resumed run: share of files equal to an uninterrupted run's", result["killed"]["same"], 1.0),
        Line("two nodes: share of files equal to one machine's", result["two_nodes"]["same"], 1.0),
    ]
