"""What to plan with: pairs/s by length of texts and cores, and calibrations an hour; prints the table as Markdown."""

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime

from loadtest import servers, texts
from loadtest.calibration import job, post
from loadtest.growth import LONGEST, TOKENS, batches
from loadtest.setup import UNCACHED, Line, Result, Setup, drive

WORK = 6_000  # tokens for each second of a measurement
FEWEST = 64  # texts for one point
SENTENCES = (3_000, 10_000)  # of a calibration
POLL = 0.2  # s


@contextmanager
def only(cores: set[int]) -> Iterator[None]:
    """Processes that are started meanwhile have these cores; this one, which sends the load, keeps its own."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def counts(cores: int) -> list[int]:
    """1, 2, 4, … and all of them."""
    return sorted({*itertools.takewhile(lambda count: count < cores, (2**power for power in itertools.count())), cores})


def by_length(setup: Setup, port: int) -> dict[int, float]:
    """Pairs/s of requests of 8 pairs on 4 connections, as in `growth`."""
    found = {}
    for tokens in TOKENS:
        count = max(FEWEST, round(WORK * setup.seconds / tokens / 16) * 16)
        cut = texts.mixed_lengths(setup.data, itertools.repeat(tokens), count)
        load = drive(port, iter(batches(list(zip(cut[::2], cut[1::2], strict=True)), 8)), 4, LONGEST, warm=0.0)
        found[tokens] = round(8 * load.rate, 1)
    return found


def calibration_seconds(setup: Setup, port: int, sentences: int) -> float:
    """From start to end of a calibration with `method=auto`, while the server is idle."""
    lines = (setup.data / "text" / "reuters-news.txt").read_text().splitlines()[:sentences]
    name = post(port, lines)
    while (record := job(port, name))["status"] in {"queued", "running"}:
        time.sleep(POLL)
    if record["status"] != "succeeded":
        raise RuntimeError(f"{sentences} sentences ended as {record['status']}: {record.get('error')}")
    began, ended = (datetime.fromisoformat(str(record[moment])) for moment in ("started", "finished"))
    return round((ended - began).total_seconds(), 1)


def measure(setup: Setup) -> Result:
    cores = sorted(os.sched_getaffinity(0))
    found: Result = {"pairs": {}, "calibration_seconds": {}, "load_before": os.getloadavg()[0]}
    for count in counts(len(cores)):
        for name, encoder in setup.encoders.items():
            with ExitStack() as stack:
                store = stack.enter_context(servers.own_store(setup.store, encoder))
                with only(set(cores[:count])):
                    settings = UNCACHED | {"max_wait": 600, "worker_threads": count}
                    server = stack.enter_context(servers.isosim(store, encoder, **settings))
                found["pairs"].setdefault(name, {})[count] = by_length(setup, server.port)
                if encoder == setup.fp32:
                    found["calibration_seconds"][count] = {
                        sentences: calibration_seconds(setup, server.port, sentences) for sentences in SENTENCES
                    }
    print(table(found))
    return found


def table(found: Result) -> str:
    """Rows of cores, columns of lengths and calibrations."""
    head = ["cores", *(f"{tokens} tokens" for tokens in TOKENS), *(f"calibrations an hour, {n:,}" for n in SENTENCES)]
    rows = [
        [f"{count} ({name})", *(f"{rate:.0f}" for rate in by.values())]
        + [f"{3600 / seconds:.0f}" for seconds in found["calibration_seconds"][count].values()]
        for name, every in found["pairs"].items()
        for count, by in every.items()
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def lines(_: Result) -> list[Line]:
    return []  # no bar; the figures stand in the report
