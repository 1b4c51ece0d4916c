"""What every measurement shares: data, stores, settings of the run, and a line of the verdict."""

from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from loadtest import texts
from loadtest.client import Load, closed_loop

T = TypeVar("T")
UNCACHED: dict[str, Any] = {"memory_cache_bytes": 0}  # every text is computed


@dataclass(frozen=True)
class Setup:
    """One run of the benchmark."""

    data: Path  # the measuring data
    store: Path  # a model store with the encoders
    fp32: str  # encoder id
    reduced: str | None  # the same encoder at a lower precision, where one passed
    peers: Path  # folder with the peers' environments; those missing are left out
    seconds: float  # of one measurement
    rounds: int  # of each comparison, interleaved
    soak: float  # s of mixed load while memory is watched
    pairs: list[texts.Pair] = field(default_factory=list)
    sentences: int = 1_000_000  # of the bulk job

    @property
    def encoders(self) -> dict[str, str]:
        """Encoder ids by the name they have in the tables."""
        return {"fp32": self.fp32} | ({"reduced": self.reduced} if self.reduced else {})


@dataclass(frozen=True)
class Line:
    """A bar and what was measured against it."""

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
    """A closed loop, after an unmeasured start."""

    async def both() -> Load:
        await closed_loop(port, requests, connections, warm)
        return await closed_loop(port, requests, connections, seconds)

    return run(both())


__all__ = ["UNCACHED", "Line", "Result", "Setup", "drive", "run"]
