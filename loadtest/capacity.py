"""Pairs per second by length of texts, and calibrations an hour, on one core and on all."""

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median

from loadtest import servers, texts
from loadtest.calibration import job, post
from loadtest.growth import LONGEST, batches
from loadtest.setup import UNCACHED, Line, Result, Setup, drive

TOKENS = (8, 16, 32, 64, 128, 256)
WORK = 40_000  # tokens per measurement; no fixed time, because the largest requests take seconds
SENTENCES = (2_000, 10_000)


@contextmanager
def pinned(cores: int) -> Iterator[None]:
    """Processes that start in the block run on only `cores` cores. After the block, the client has all cores again."""
    every = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(every)[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, every)


def measure(setup: Setup) -> Result:
    sentences = (setup.data / "text" / "reuters-news.txt").read_text().splitlines()
    found: Result = {"pairs": {}, "calibration_seconds": {}}
    for cores in sorted({1, len(os.sched_getaffinity(0))}):
        for name, encoder in setup.encoders.items():
            with ExitStack() as stack:
                store = stack.enter_context(servers.own_store(setup.store, encoder))
                with pinned(cores):
                    # With this `max_wait`, the server refuses no request. Refusals would distort the measurement.
                    server = stack.enter_context(servers.isosim(store, encoder, **UNCACHED, max_wait=600))
                speeds = found["pairs"].setdefault(name, {}).setdefault(cores, {})
                for tokens in TOKENS:
                    count = max(128, min(2048, WORK // tokens // 16 * 16))
                    cut = texts.mixed_lengths(setup.data, itertools.repeat(tokens), count)
                    pairs = list(zip(cut[::2], cut[1::2], strict=True))
                    speeds[tokens] = 8 * drive(server.port, iter(batches(pairs, 8)), 4, LONGEST, warm=0.0).rate
                if name == "fp32":
                    found["calibration_seconds"][cores] = {
                        size: median(calibrated(server.port, sentences[:size]) for _ in range(setup.rounds))
                        for size in SENTENCES
                    }
    return found


def calibrated(port: int, sentences: list[str]) -> float:
    """Duration (s) of a calibration on an otherwise idle server."""
    began = time.monotonic()
    name = post(port, sentences)
    while (state := job(port, name)["status"]) in {"queued", "running", "publishing"}:
        time.sleep(0.05)
    if state != "succeeded":
        raise RuntimeError(f"the calibration of {len(sentences)} sentences ended as {state}")
    return time.monotonic() - began


def lines(_: Result) -> list[Line]:
    return []  # no limits; the table is in README.md
