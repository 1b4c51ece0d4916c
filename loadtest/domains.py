"""Many domains in one process: memory per domain, and throughput when requests are spread over all of them."""

import itertools
import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from isosim.domains.store import DomainStore
from isosim.encoders.store import EncoderStore
from isosim.fitting.job import CalibrationInput, calibrate_job
from isosim.jobs.job import JobRequest
from isosim.store.blobs import opened
from loadtest import servers, texts
from loadtest.many import multiply
from loadtest.servers import Server
from loadtest.setup import UNCACHED, Line, Result, Setup, drive

COUNTS = (1, 10, 100, 1000)
SENTENCES = 3000


def fitted(setup: Setup, store: Path, count: int = SENTENCES) -> None:
    """Calibrates the domain d0 on `count` sentences, and publishes the version as champion."""
    artifact = EncoderStore.at(store).find(setup.fp32)
    sentences = (setup.data / "text" / "imdb-reviews.txt").read_text().splitlines()[:count]
    wanted = JobRequest(
        domain="d0", method="whitening", promote="always", seed=0, encoder=artifact.digest, encoder_id=artifact.id
    )
    domains = DomainStore(opened(store))
    done = calibrate_job(wanted, CalibrationInput(sentences, []), artifact, domains, lambda *_: None, threads=2)
    done.publish(domains)


def stream(setup: Setup, count: int) -> list[bytes]:
    """Requests with STS-B's pairs, spread over the domains."""
    pairs = setup.pairs[:4000]
    return [texts.single_pairs([pair], f"d{number % count}")[0] for number, pair in enumerate(pairs)]


def measure(setup: Setup) -> Result:
    rates: dict[int, list[float]] = {count: [] for count in COUNTS}
    resident: dict[int, int] = {}
    ready: dict[int, float] = {}
    with ExitStack() as outer:
        store = outer.enter_context(servers.own_store(setup.store, setup.fp32))
        fitted(setup, store)
        running: dict[int, Server] = {}
        for count in COUNTS:
            multiply(store, count)
            own = outer.enter_context(servers.own_store(setup.store, setup.fp32))
            for kind in ("domains", "versions"):
                shutil.rmtree(own / kind, ignore_errors=True)
                shutil.copytree(store / kind, own / kind, copy_function=os.link)
            server = outer.enter_context(servers.isosim(own, setup.fp32, **UNCACHED))
            drive(server.port, iter(stream(setup, count)[: 2 * count]), 4, 120.0, warm=0.0)  # loads every domain
            resident[count], ready[count] = server.resident(), round(server.ready, 2)
            running[count] = server
        for _ in range(setup.rounds):
            for count, server in running.items():
                with servers.paused([other for other in running.values() if other is not server]):
                    load = drive(server.port, itertools.cycle(stream(setup, count)), 64, setup.seconds)
                rates[count].append(load.rate)
    ratio = median(a / b for a, b in zip(rates[COUNTS[-1]], rates[1], strict=True))
    a_domain = (resident[COUNTS[-1]] - resident[1]) / (COUNTS[-1] - 1)
    return {
        "rates": rates,
        "resident_bytes": resident,
        "ready_seconds": ready,
        "ratio": round(ratio, 3),
        "bytes_a_domain": round(a_domain),
    }


def lines(result: Result) -> list[Line]:
    return [
        Line("1,000 domains / one domain, uncached pairs/s at 64 connections", result["ratio"], 0.9),
        Line("memory a loaded domain", result["bytes_a_domain"] / 1e6, 2.0, at_most=True, unit=" MB"),
    ]
