"""What telling costs: the same cached requests with and without access lines, and with traces."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from statistics import median

from loadtest import servers, texts
from loadtest.setup import Line, Result, Setup, drive

CONNECTIONS = 16
PAIRS = 1000  # of STS-B, asked for again and again
SOME = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.01"}


def measure(setup: Setup) -> Result:
    requests = texts.single_pairs(setup.pairs[:PAIRS])
    rates: dict[str, list[float]] = {}
    summaries: dict[str, object] = {}
    with ExitStack() as stack:
        collector = stack.enter_context(receiving())
        quiet = {"log_level": "info", "access_log": "off"}
        settings: dict[str, dict[str, object]] = {
            "no access lines": quiet,
            "all": {"log_level": "info"},
            "slow": {"log_level": "info", "access_log": "slow"},
            "traced, 1 %": {**quiet, "otlp_endpoint": collector, "environment": SOME},
            "traced, all": {**quiet, "otlp_endpoint": collector},
        }
        everyone = {
            name: stack.enter_context(
                servers.isosim(stack.enter_context(servers.own_store(setup.store, setup.fp32)), setup.fp32, **given)
            )
            for name, given in settings.items()
        }
        for server in everyone.values():  # every text once
            drive(server.port, iter(requests), 4, 60.0, warm=0.0)
        for _ in range(setup.rounds):
            for name, server in everyone.items():
                with servers.paused([other for other in everyone.values() if other is not server]):
                    load = drive(server.port, itertools.cycle(requests), CONNECTIONS, setup.seconds)
                rates.setdefault(name, []).append(load.rate)
                summaries[name] = load.summary()
    base = rates["no access lines"]
    ratios = {name: [round(a / b, 3) for a, b in zip(found, base, strict=True)] for name, found in rates.items()}
    return {"rates": rates, "ratios": ratios, "last_round": summaries}


@contextmanager
def receiving() -> Iterator[str]:
    """A collector that takes everything and keeps nothing."""

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
    ratios = {name: median(found) for name, found in result["ratios"].items()}
    return [
        Line("cached, a line a request / no access lines, pairs/s at 16", ratios["all"], 0.9),
        Line("cached, traced at 1 % / not traced, pairs/s at 16", ratios["traced, 1 %"], 0.0, note="no bar"),
        Line("cached, every request traced / not traced, pairs/s at 16", ratios["traced, all"], 0.0, note="no bar"),
    ]
