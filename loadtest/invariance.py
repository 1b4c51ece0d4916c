"""Measures how much a pair's score changes if the pair is scored in a batch with other texts. Measures each precision.

The scores are requested over HTTP, without a cache.
"""

import random

import numpy as np
import orjson

from loadtest import servers, texts
from loadtest.client import ask, request
from loadtest.setup import UNCACHED, Line, Result, Setup, run

PAIRS = 200
# (pairs per request, 1 if other texts are added, some of them long)
BATCHES = ((2, 0), (16, 0), (16, 1), (64, 1), (512, 1))
BARS = {"fp32": 1e-5, "reduced": 1e-3}


def scores(port: int, pairs: list[texts.Pair]) -> np.ndarray:
    ((status, _, body),) = run(ask(port, request("/similarity", texts.body_of(pairs))))
    if status != 200:
        raise RuntimeError(f"{status}: {body[:300]!r}")
    return np.array(orjson.loads(body)["cosine"])


def measure(setup: Setup) -> Result:
    rng = random.Random(0)  # noqa: S311 - a sample
    pairs = rng.sample(setup.pairs, PAIRS)
    lengths = (rng.choice((8, 32, 100, 250)) for _ in iter(int, 1))
    strangers = texts.mixed_lengths(setup.data, lengths, 512)
    found: Result = {}
    for name, encoder in setup.encoders.items():
        with servers.own_store(setup.store, encoder) as store, servers.isosim(store, encoder, **UNCACHED) as server:
            alone = np.concatenate([scores(server.port, [pair]) for pair in pairs])
            worst = {}
            for size, mixed in BATCHES:
                together = []
                for start in range(0, PAIRS, size):
                    own = pairs[start : start + size]
                    extra = [(text, text[::-1]) for text in rng.sample(strangers, 8)] if mixed else []
                    together.append(scores(server.port, own + extra)[: len(own)])
                worst[f"{size} pairs{', long ones among them' if mixed else ''}"] = float(
                    np.abs(np.concatenate(together) - alone).max()
                )
            found[name] = worst
    return found


def lines(result: Result) -> list[Line]:
    return [
        Line(f"{name}: largest change of a score by its batch", max(worst.values()), BARS[name], at_most=True)
        for name, worst in result.items()
    ]
