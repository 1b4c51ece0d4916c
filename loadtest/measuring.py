"""What all parts share: options of a run, servers that are driven in turn, ratios, and a line of the result."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import uvloop

from isosim.encoders.spec import Engine
from loadtest import servers, texts
from loadtest.client import Load, closed_loop
from loadtest.servers import Server

Result = dict[str, Any]
Contestants = Mapping[str, tuple[Server, Iterator[bytes]]]
UNCACHED: dict[str, Any] = {"memory_cache_bytes": 0}  # settings without a cache


@dataclass(frozen=True)
class Setup:
    """Options of a run; `python -m loadtest.bench --help` describes them."""

    data: Path
    store: Path
    encoder: str
    reduced: str | None
    bf16: str | None
    peers: Path
    seconds: float
    rounds: int
    minutes: float | None
    engine: Engine  # for gpu
    servers: list[int]
    tokens: int
    config: Path | None

    @cached_property
    def pairs(self) -> list[texts.Pair]:
        return texts.sts_pairs(self.data)

    @property
    def encoders(self) -> dict[str, str]:
        """Name in the tables -> encoder id."""
        named = {"fp32": self.encoder, "reduced": self.reduced, "bf16": self.bf16}
        return {name: encoder for name, encoder in named.items() if encoder}

    def sentences_of(self, name: str, count: int | None = None) -> list[str]:
        return (self.data / "text" / f"{name}.txt").read_text().splitlines()[:count]


@dataclass(frozen=True)
class Line:
    """A measured value and its limit (`bar`)."""

    name: str
    value: float
    bar: float
    at_most: bool = False
    unit: str = ""
    note: str = ""

    @property
    def holds(self) -> bool:
        return self.value <= self.bar if self.at_most else self.value >= self.bar


def drive(server: Server, requests: Iterator[bytes], connections: int, seconds: float, warm: float = 1.0) -> Load:
    """Runs a closed loop: `warm` seconds without measurement, then `seconds` seconds with measurement."""

    async def both() -> Load:
        if warm:
            await closed_loop(server.port, requests, connections, warm)
        before = server.processor_seconds()
        load = await closed_loop(server.port, requests, connections, seconds)
        load.server_cpu = server.processor_seconds() - before
        return load

    return uvloop.run(both())


def fill(server: Server, requests: list[bytes]) -> None:
    """Sends each request once, to fill the caches or to load domains."""
    drive(server, iter(requests), 4, 120.0, warm=0.0)


def in_turn(contestants: Contestants, connections: int, seconds: float) -> dict[str, Load]:
    """Drives each server once, while the others are paused."""
    running = [server for server, _ in contestants.values()]
    loads = {}
    for name, (server, requests) in contestants.items():
        with servers.paused([other for other in running if other is not server]):
            loads[name] = drive(server, requests, connections, seconds)
    return loads


def each_round(rounds: list[dict[str, Load]], measure: Callable[[Load], float]) -> dict[str, list[float]]:
    """Name of a contestant -> its value in each round."""
    return {name: [measure(loads[name]) for loads in rounds] for name in rounds[0]}


def divided(above: list[float], below: list[float]) -> list[float]:
    """Ratios of values of the same round. The machine's speed may change from round to round."""
    return [round(a / b, 3) for a, b in zip(above, below, strict=True)]
