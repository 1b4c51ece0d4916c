"""Peak memory of a calibration at 768 dimensions, by number of sentences.

The sentences are sent to a server, or the command `isosim calibrate` reads them from a file.
"""

import contextlib
import itertools
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from loadtest import servers
from loadtest.setup import Line, Result, Setup

SIZES = (10_000, 100_000, 1_000_000)  # lines
METHODS = {10_000: ("soft",), 100_000: ("identity", "soft", "whitening", "auto"), 1_000_000: ("soft", "auto")}
BAR = 3.0  # GB
LONGEST = 96  # characters per line; a request with a million lines may have at most 100 MB
GB = 1e9
LOOK = 0.1  # seconds between measurements of memory


def text(data: Path, count: int) -> Iterator[str]:
    """Distinct lines. Each has the first half of a real sentence and the second half of another."""
    sentences = [line for name in ("wikipedia-en", "imdb-reviews", "reuters-news")
                 for line in (data / "text" / f"{name}.txt").read_text().splitlines()]  # fmt: skip
    words = [line.split() for line in sentences]
    rng, seen = random.Random(0), set[int]()  # noqa: S311 - a sample
    while len(seen) < count:
        one, other = rng.choice(words), rng.choice(words)
        line = " ".join([*one[: len(one) // 2], *other[len(other) // 2 :]])[:LONGEST].strip()
        if hash(line) not in seen:
            seen.add(hash(line))
            yield line


def export(store: Path, data: Path) -> None:
    """Exports a BERT with one narrow layer, 768 dimensions and random weights, which do not affect memory."""
    import torch  # noqa: PLC0415 - only this part needs it
    from tokenizers import BertWordPieceTokenizer  # noqa: PLC0415
    from transformers import BertConfig, BertModel  # noqa: PLC0415

    from isosim.export import checkpoints, encoder  # noqa: PLC0415
    from isosim.export.model_store import export as write  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        tokenizer = BertWordPieceTokenizer(lowercase=True)
        tokenizer.train_from_iterator(text(data, 5000), vocab_size=4000, show_progress=False)
        tokenizer.save(str(Path(folder) / "tokenizer.json"))
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=4000, hidden_size=768, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64,
            max_position_embeddings=64, initializer_range=0.2,
        )  # fmt: skip
        BertModel(config).save_pretrained(folder)
        checkpoint = checkpoints.resolve(folder)
        spec = encoder.describe(checkpoint, pooling=None, layers=None, max_length=6, prompt="")
        write(store, "wide", checkpoint, spec, lambda _: None)


def high_water(pid: int) -> int:
    """Peak resident bytes of a process; 0 if it has ended."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        status = Path(f"/proc/{pid}/status").read_text()
        return 1024 * int(status.partition("VmHWM:")[2].split()[0])
    return 0


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def posted(store: Path, file: Path, domain: str, method: str) -> dict[str, float]:
    """Sends a text to a server. Returns the duration, and the peak memory of the server and its calibrating process."""
    with servers.isosim(store, "wide") as server, httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as client:
        began, worker = time.monotonic(), 0
        answer = client.post(
            "/calibrate", params={"domain": domain, "method": method, "promote": "never"},
            content=(chunk for chunk in iter_file(file)), headers={"content-type": "text/plain"}, timeout=600,
        )  # fmt: skip
        answer.raise_for_status()
        job = answer.json()["job"]
        for look in itertools.count():
            worker = max([worker, *map(high_water, children(server.pid))])
            if look % 20 == 0:
                state = client.get(f"/calibrate/{job}").json()
                if state["status"] not in ("queued", "running", "publishing"):
                    break
            time.sleep(LOOK)
        if state["status"] != "succeeded":
            raise RuntimeError(state["error"])
        return {
            "worker_gb": worker / GB, "server_gb": high_water(server.pid) / GB, "seconds": time.monotonic() - began,
            "used": state["report"].get("used", state["report"]["sentences"]),
        }  # fmt: skip


def iter_file(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        while chunk := opened.read(1 << 20):
            yield chunk


def from_file(store: Path, file: Path, domain: str, method: str) -> dict[str, float]:
    """Peak memory and duration of `isosim calibrate FILE`."""
    began = time.monotonic()
    command = [
        sys.executable, "-m", "isosim.cli", "calibrate", str(file), "--domain", domain, "--method", method,
        "--promote", "never", "--model-store", str(store), "--encoder", "wide",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603 - our own
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{' '.join(command)} ended with {status}")
    return {"worker_gb": usage.ru_maxrss * 1024 / GB, "seconds": time.monotonic() - began}


def measure(setup: Setup) -> Result:
    found: Result = {}
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        export(store, setup.data)
        for size in SIZES:
            file = Path(folder) / f"{size}.txt"
            with file.open("w") as opened:
                opened.writelines(f"{line}\n" for line in text(setup.data, size))
            for method in METHODS[size]:
                found[f"{size:,} lines, {method}"] = posted(store, file, f"d{size}", method)
            found[f"{size:,} lines, soft, from a file"] = from_file(store, file, f"f{size}", "soft")
    return found


def lines(result: Result) -> list[Line]:
    return [
        Line(f"peak of a calibration, {name}", facts["worker_gb"], BAR, at_most=True, unit=" GB")
        for name, facts in result.items()
    ]
