"""Stages of requests and the current trace, without OpenTelemetry, which only otlp.py imports."""

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


# The W3C traceparent of the current request, for jobs that it starts.
posting: ContextVar[str | None] = ContextVar("posting", default=None)
