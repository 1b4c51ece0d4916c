"""Compares a remote encoder with a local one: processor time of the API process per pair, and scores.

While processor time is measured, both encoders wait instead of computing. The remote encoder runs in another process,
whose processor time is not counted.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import httpx
import numpy as np

from isosim.export.remote import register
from loadtest import servers, texts
from loadtest.host import GPU_BATCHES, cost, new_pairs
from loadtest.servers import Server
from loadtest.setup import Line, Result, Setup

SAME = 400  # pairs whose scores are compared
PARITY = 1e-4


@contextmanager
def registered(url: str, model: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        register(Path(folder), "far", url, model, lambda _: None)
        yield Path(folder)


def scores(server: Server, pairs: list[texts.Pair]) -> list[float]:
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=600) as client:
        found = [client.post("/similarity", json={"pairs": pairs[at : at + 20]}) for at in range(0, len(pairs), 20)]
    return [score for answer in found for score in answer.raise_for_status().json()["similarity"]]


def exported(setup: Setup, stack: ExitStack) -> Server:
    """Starts isosim with the exported encoder."""
    store = stack.enter_context(servers.own_store(setup.store, setup.fp32))
    return stack.enter_context(servers.isosim(store, setup.fp32))


def difference(setup: Setup, open_server: Callable[[ExitStack], tuple[str, str]]) -> float:
    """Largest difference between scores of the exported encoder and of the same encoder on another server."""
    pairs = setup.pairs[:SAME]
    with ExitStack() as stack:
        here = exported(setup, stack)
        expected = scores(here, pairs)
        url, model = open_server(stack)
        far = stack.enter_context(servers.isosim(stack.enter_context(registered(url, model)), "far"))
        return float(np.abs(np.array(scores(far, pairs)) - expected).max())


def measure(setup: Setup) -> Result:
    costs: dict[str, list[float]] = {"local": [], "remote": []}
    rates: dict[str, list[float]] = {name: [] for name in costs}
    with ExitStack() as stack:
        store = stack.enter_context(servers.own_store(setup.store, setup.fp32))
        shutil.rmtree(store / "domains", ignore_errors=True)  # no calibration, as on the remote server
        local = stack.enter_context(servers.isosim(store, setup.fp32, "loadtest.waiting_encoder", **GPU_BATCHES))
        other = stack.enter_context(servers.waiting_embeddings())
        far_store = stack.enter_context(registered(f"http://127.0.0.1:{other.port}/v1", "waiting"))
        remote = stack.enter_context(servers.isosim(far_store, "far"))
        requests = new_pairs(setup.pairs)
        for _ in range(setup.rounds):
            for name, server, idle in (("local", local, [remote, other]), ("remote", remote, [local])):
                with servers.paused(idle):
                    spent, rate = cost(server, requests, setup.seconds)
                costs[name].append(spent)
                rates[name].append(rate)

    def another_isosim(stack: ExitStack) -> tuple[str, str]:
        server = exported(setup, stack)
        return f"http://127.0.0.1:{server.port}/v1", "isosim:raw"

    def infinity(stack: ExitStack) -> tuple[str, str]:
        binary, model = setup.peers / "infinity" / "bin" / "infinity_emb", setup.peers / "infinity-model"
        server = stack.enter_context(servers.infinity(binary, model, "torch"))
        return f"http://127.0.0.1:{server.port}", model.name

    same = {"isosim": difference(setup, another_isosim)}
    if (setup.peers / "infinity-model").is_dir():
        same["infinity torch"] = difference(setup, infinity)
    return {
        "microseconds": {name: [round(1e6 * one, 1) for one in spent] for name, spent in costs.items()},
        "rates": rates,
        "ratios": [round(far / near, 3) for far, near in zip(costs["remote"], costs["local"], strict=True)],
        "differences": same,
    }


def lines(result: Result) -> list[Line]:
    found = [Line("host cost of an uncached pair, remote / local", median(result["ratios"]), 2.0, at_most=True)]
    for name, off in result["differences"].items():
        found.append(Line(f"largest difference of scores, behind {name} / exported", off, PARITY, at_most=True))
    return found
