"""Settings of a run, a line of the result, and functions that send load, for all measurements."""

from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from loadtest import texts
from loadtest.client import Load, closed_loop

T = TypeVar("T")
UNCACHED: dict[str, Any] = {"memory_cache_bytes": 0}  # settings without a cache


@dataclass(frozen=True)
class Setup:
    """Settings of a benchmark run."""

    data: Path  # folder with the test data
    store: Path  # a model store with the encoders
    fp32: str  # encoder id
    reduced: str | None  # id of the same encoder at a lower precision, if there is one
    peers: Path  # folder with the peers' environments; missing ones are skipped
    seconds: float  # duration of one measurement
    rounds: int  # how often each comparison is measured
    soak: float  # seconds of mixed load in the memory measurement
    pairs: list[texts.Pair] = field(default_factory=list)
    sentences: int = 1_000_000  # number of sentences for `isosim bulk embed`

    @property
    def encoders(self) -> dict[str, str]:
        """Name in the tables -> encoder id."""
        return {"fp32": self.fp32} | ({"reduced": self.reduced} if self.reduced else {})


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


Result = dict[str, Any]


def run(task: Coroutine[Any, Any, T]) -> T:
    return uvloop.run(task)


def drive(port: int, requests: Iterator[bytes], connections: int, seconds: float, warm: float = 1.0) -> Load:
    """Runs a closed loop: `warm` seconds without measurement, then `seconds` seconds with measurement."""

    async def both() -> Load:
        await closed_loop(port, requests, connections, warm)
        return await closed_loop(port, requests, connections, seconds)

    return run(both())


__all__ = ["UNCACHED", "Line", "Result", "Setup", "drive", "run"]
