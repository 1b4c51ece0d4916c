"""Memory and latency of `/livez` while clients without a key send thousands of requests and read no answers."""

import contextlib
import socket
import time

from loadtest import servers
from loadtest.servers import Server
from loadtest.setup import Line, Result, Setup

CONNECTIONS = 100
AHEAD = b"GET /x HTTP/1.1\r\nhost:x\r\n\r\n" * 10_000  # 270 kB; the server reads at most 256 kB at once
SECONDS = 10.0


def probe(server: Server) -> float:
    """Seconds of `GET /livez` on a new connection."""
    began = time.perf_counter()
    with socket.create_connection(("127.0.0.1", server.port), 60) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        while connection.recv(65536):
            pass
    return time.perf_counter() - began


def measure(setup: Setup) -> Result:
    with servers.own_store(setup.store, setup.fp32) as store, servers.isosim(store, setup.fp32) as server:
        quiet = sorted(probe(server) for _ in range(200))
        before = most = server.resident()
        waits = []
        with contextlib.ExitStack() as stack:
            for _ in range(CONNECTIONS):
                sender = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
                sender.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    sender.send(AHEAD)
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                waits.append(probe(server))
                most = max(most, server.resident())
                time.sleep(0.01)
    return {
        "connections": CONNECTIONS,
        "bytes_a_connection": (most - before) // CONNECTIONS,
        "livez_quiet_ms": {"p50": 1e3 * quiet[len(quiet) // 2], "max": 1e3 * quiet[-1]},
        "livez_first_ms": 1e3 * waits[0],  # includes the time to accept the other connections
        "livez_ms": {"p50": 1e3 * sorted(waits)[len(waits) // 2], "max": 1e3 * max(waits)},
        "probes": len(waits),
    }


def lines(result: Result) -> list[Line]:
    kilobytes = result["bytes_a_connection"] / 1e3
    return [
        Line("10,000 requests sent ahead: memory of a connection", kilobytes, 1000, at_most=True, unit=" kB"),
        Line(
            "slowest /livez while 100 such connections are open",
            result["livez_ms"]["max"],
            2000,
            at_most=True,
            unit=" ms",
        ),
        Line("the same, median", result["livez_ms"]["p50"], 100, at_most=True, unit=" ms"),
    ]
