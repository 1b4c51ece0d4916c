"""The stages that spans are made of, and the trace that a request belongs to. OpenTelemetry itself: otlp.py."""

from collections.abc import Mapping
from contextvars import ContextVar
from typing import NamedTuple

Attributes = Mapping[str, str | int | float | bool]


class Stage(NamedTuple):
    """A part of a request that was timed. Times as of time.perf_counter."""

    name: str
    began: float
    ended: float
    attributes: Attributes


# The W3C traceparent of the request that is being answered, for what it starts and does not wait for.
posting: ContextVar[str | None] = ContextVar("posting", default=None)
