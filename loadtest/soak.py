"""`make soak`: half an hour of mixed load, to find resources that leak and requests that become slower.

Runs API, worker and Redis as in production. Locust's mixed users and an analyst send the requests. Measures memory,
file descriptors, threads, tasks and Redis connections every ten seconds.
"""

import argparse
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from redis import Redis
from rich.console import Console

from loadtest import figures, servers
from loadtest.bench import hardware, table
from loadtest.setup import Line

LOOK = 10.0  # s between measurements
USERS = 12
WARM = 0.1  # share of the run that is ignored at its beginning, while caches fill and code is loaded
SERIES = ("resident", "descriptors", "threads", "tasks", "redis_connections")
Looks = list[dict[str, float]]


@contextmanager
def worker(store: Path, redis: str) -> Iterator[None]:
    environment = {**os.environ, "ISOSIM_MODEL_STORE": str(store), "ISOSIM_REDIS_URL": redis}
    with (
        tempfile.NamedTemporaryFile(suffix=".log") as log,
        servers.process([sys.executable, "-m", "isosim.cli", "worker"], environment, Path(log.name)),
    ):
        yield


def look(server: servers.Server, redis: Redis, began: float) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=30) as answer:
        text = answer.read().decode()

    def metric(name: str) -> float:
        found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else float("nan")

    clients: Any = redis.info("clients")
    return {
        "at": round(time.monotonic() - began, 1),
        "resident": metric("process_resident_memory_bytes"),
        "descriptors": metric("process_open_fds"),
        "threads": len(list(Path(f"/proc/{server.pid}/task").iterdir())),
        "tasks": metric("isosim_event_loop_tasks"),
        "redis_connections": float(clients["connected_clients"]),
    }


def measure(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    seconds = given.minutes * 60
    with ExitStack() as stack:
        store = stack.enter_context(servers.own_store(given.store, given.encoder))
        url = stack.enter_context(servers.redis())
        server = stack.enter_context(servers.isosim(store, given.encoder, redis_url=url, memory_cache_bytes=2**22))
        stack.enter_context(worker(store, url))
        redis = stack.enter_context(Redis.from_url(url))
        time.sleep(3)  # time for the worker to register
        command = [
            str(given.locust), "-f", "loadtest/locustfile.py", "--headless", "--host", f"http://127.0.0.1:{server.port}",
            "--users", str(given.users), "--spawn-rate", "2", "--run-time", f"{seconds:.0f}s", "--stop-timeout", "60",
            "--csv", str(folder / "soak"), "--csv-full-history", "--only-summary", "--calibrate-every", "60",
            "MixedUser", "AnalystUser",
        ]  # fmt: skip
        began, looks = time.monotonic(), []
        with (
            (folder / "locust.log").open("wb") as log,
            subprocess.Popen(  # noqa: S603 - our own command
                command, stdout=log, stderr=subprocess.STDOUT
            ) as load,
        ):
            while load.poll() is None:
                looks.append(look(server, redis, began))
                with suppress(subprocess.TimeoutExpired):
                    load.wait(LOOK)
        time.sleep(5)  # time for the load's connections to close
        rest = look(server, redis, began)
        print((folder / "locust.log").read_text()[-3500:])
        return {"looks": looks, "rest": rest, "latency": latencies(folder / "soak_stats_history.csv"),
                "exit": load.returncode, **totals(folder / "soak_stats.csv")}  # fmt: skip


def latencies(history: Path) -> list[tuple[float, float, float]]:
    """Rows (seconds since the start, p50, p99) of /similarity. p50 and p99 (ms) cover the ten seconds before."""
    if not history.is_file():
        raise SystemExit("locust did not run; see its output above")
    with history.open() as file:
        rows = [row for row in csv.DictReader(file) if row["Name"] == "/similarity" and row["99%"] != "N/A"]
    start = float(rows[0]["Timestamp"])
    return [(float(row["Timestamp"]) - start, float(row["50%"]), float(row["99%"])) for row in rows]


def totals(stats: Path) -> dict[str, Any]:
    with stats.open() as file:
        rows = {row["Name"]: row for row in csv.DictReader(file)}
    every = rows.pop("Aggregated")
    return {
        "requests": int(every["Request Count"]),
        "failures": int(every["Failure Count"]),
        "routes": {
            name: {key: float(row[key]) for key in ("Request Count", "50%", "99%")} for name, row in rows.items()
        },
    }


def thirds(values: list[tuple[float, float]], seconds: float) -> tuple[list[float], list[float]]:
    """Values of the first and the last third of the run, without the warm-up."""
    first, span = WARM * seconds, (1 - WARM) * seconds / 3
    early = [value for at, value in values if first <= at < first + span]
    late = [value for at, value in values if first + 2 * span <= at < seconds]
    return early, late


def lines(result: dict[str, Any], seconds: float) -> list[Line]:
    looks: Looks = result["looks"]
    series = {name: thirds([(one["at"], one[name]) for one in looks], seconds) for name in SERIES}
    p99 = thirds([(at, high) for at, _, high in result["latency"]], seconds)
    early, late = series["resident"]
    found = [
        Line("failed requests", result["failures"], 0, at_most=True),
        Line("resident memory, last third / first", median(late) / median(early), 1.05, at_most=True),
        Line("p99 of /similarity, last third / first", median(p99[1]) / median(p99[0]), 1.25, at_most=True),
    ]
    for name in ("descriptors", "threads", "redis_connections"):
        early, late = series[name]
        more = max(late) - max(early)
        found.append(Line(f"{name.replace('_', ' ')}: maximum, last third minus first", more, 2, at_most=True))
    early, late = series["tasks"]
    found.append(Line("tasks: median, last third minus first", median(late) - median(early), 2, at_most=True))
    first, rest = looks[0], result["rest"]
    # Redis connections are subtracted, because the loop above checks them.
    left = (rest["descriptors"] - rest["redis_connections"]) - (first["descriptors"] - first["redis_connections"])
    found.append(Line("other descriptors: after the load minus at its start", left, 4, at_most=True))
    return found


def main() -> int:
    """Runs the soak test; the exit code is 0 if nothing grew, slowed down or failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--users", type=int, default=USERS)
    parser.add_argument("--store", type=Path, default=Path("model_store"))
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--locust", type=Path, default=Path(".venv-load/bin/locust"))
    parser.add_argument("--results", type=Path, default=Path("loadtest/results"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(given, Path(folder))
    found = lines(result, given.minutes * 60)
    Console().print(table(found))
    verdicts = [asdict(line) | {"holds": line.holds} for line in found]
    record = {"part": "soak", "when": datetime.now(UTC).isoformat(timespec="seconds"), "hardware": hardware(),
              "encoder": given.encoder, "users": given.users, "minutes": given.minutes, "lines": verdicts,
              "result": result}  # fmt: skip
    given.results.mkdir(parents=True, exist_ok=True)
    (given.results / "soak.json").write_text(json.dumps(record, indent=1) + "\n")
    figures.soak(result, given.results / "soak.png")
    return 0 if all(line.holds for line in found) and result["exit"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
