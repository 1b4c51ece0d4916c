"""Stages of requests and the current trace. Imports no OpenTelemetry; only otlp.py does."""

from collections.abc import Mapping
from contextvars import ContextVar
from typing import NamedTuple

Attributes = Mapping[str, str | int | float | bool]


class Stage(NamedTuple):
    """A timed part of a request. Times are those of time.perf_counter (s)."""

    name: str
    began: float
    ended: float
    attributes: Attributes


# W3C traceparent header of the current request; jobs that the request starts carry it.
posting: ContextVar[str | None] = ContextVar("posting", default=None)
