"""Whether requests and calibrations are traced; OpenTelemetry's SDK is imported only then."""

from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

from service.core.errors import Unavailable
from service.settings import Settings, otel_endpoint

if TYPE_CHECKING:
    from service.observability.otlp import Tracing

Attributes = Mapping[str, str | int | float | bool]


class Stage(NamedTuple):
    """A part of a request that was timed. Times as of time.perf_counter."""

    name: str
    began: float
    ended: float
    attributes: Attributes


# The W3C traceparent of the request that is being answered, for what it starts and does not wait for.
posting: ContextVar[str | None] = ContextVar("posting", default=None)


def tracing(settings: Settings, name: str) -> "Tracing | None":
    """What traces under this service name, where an endpoint is set. Raises Unavailable, as `tracing_class` does."""
    found = tracing_class(settings)
    return None if found is None else found(settings.otlp_endpoint, name)


def tracing_class(settings: Settings) -> "type[Tracing] | None":
    """None where nothing is traced.

    Raises:
        Unavailable: an endpoint is set, and the packages are not installed.
    """
    if settings.otlp_endpoint is None and not otel_endpoint():
        return None
    try:
        from service.observability.otlp import Tracing  # noqa: PLC0415
    except ImportError as error:
        raise Unavailable(
            f"tracing needs {error.name}, which is not installed: pip install 'isosim[tracing]'"
        ) from None
    return Tracing
