"""Cost of access logs and traces, on cached requests.

Measures answers per second, and the server's processor time per answer. On a shared machine, the processor time varies
less.
"""

import itertools
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from statistics import median
from typing import Any

from loadtest import servers, texts
from loadtest.setup import Line, Result, Setup, drive

CONNECTIONS = 16
PAIRS = 1000  # pairs that are sent repeatedly
BASE = "no access lines"
SOME = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.01"}


def measure(setup: Setup) -> Result:
    requests = texts.single_pairs(setup.pairs[:PAIRS])
    rates: dict[str, list[float]] = {}
    costs: dict[str, list[float]] = {}  # processor seconds per answer
    summaries: dict[str, object] = {}
    with ExitStack() as stack:
        collector = stack.enter_context(receiving())
        traced = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector}
        quiet: dict[str, Any] = {"log_level": "info", "access_log": "off"}
        settings: dict[str, dict[str, Any]] = {
            BASE: quiet,
            "all": {"log_level": "info"},
            "slow": {"log_level": "info", "access_log": "slow"},
            "traced, 1 %": {**quiet, "environment": traced | SOME},
            "traced, all": {**quiet, "environment": traced},
        }
        everyone = {
            name: stack.enter_context(
                servers.isosim(stack.enter_context(servers.own_store(setup.store, setup.fp32)), setup.fp32, **given)
            )
            for name, given in settings.items()
        }
        for server in everyone.values():  # fills the cache
            drive(server.port, iter(requests), 4, 60.0, warm=0.0)
        for _ in range(setup.rounds):
            for name, server in everyone.items():
                with servers.paused([other for other in everyone.values() if other is not server]):
                    before = server.processor_seconds()
                    load = drive(server.port, itertools.cycle(requests), CONNECTIONS, setup.seconds, warm=0.0)
                    spent = server.processor_seconds() - before
                rates.setdefault(name, []).append(load.rate)
                costs.setdefault(name, []).append(spent / len(load.statuses))
                summaries[name] = load.summary()
    return {
        "rates": rates,
        "microseconds": {name: [round(1e6 * one, 1) for one in found] for name, found in costs.items()},
        "rate_ratios": against(BASE, rates),
        "cost_ratios": against(BASE, costs),
        "last_round": summaries,
    }


def against(base: str, found: dict[str, list[float]]) -> dict[str, list[float]]:
    """Divides the value of each round by the value of `base` in the same round."""
    return {name: [round(a / b, 3) for a, b in zip(values, found[base], strict=True)] for name, values in found.items()}


@contextmanager
def receiving() -> Iterator[str]:
    """Runs a collector that discards all traces; yields its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def lines(result: Result) -> list[Line]:
    costs = {name: median(found) for name, found in result["cost_ratios"].items()}
    kinds = {
        "all": "a line for each request",
        "slow": "only slow ones",
        "traced, 1 %": "traced at 1 %",
        "traced, all": "traced",
    }
    bars = {"all": 1.1, "slow": 1.05}
    return [
        Line(f"cached, {kind} / {BASE}: processor time", costs[name], bars.get(name, 99.0), at_most=True,
             note="" if name in bars else "no bar")
        for name, kind in kinds.items()
    ]  # fmt: skip
