"""Whether traces are sent. Imports OpenTelemetry only if they are (otlp.py)."""

from typing import TYPE_CHECKING

from isosim.errors import Unavailable
from isosim.settings import otel_endpoint

if TYPE_CHECKING:
    from isosim.observability.otlp import Tracing


def tracing(name: str) -> "Tracing | None":
    """Tracing under the service name `name`; None if no endpoint is set.

    Raises:
        Unavailable: an endpoint is set, but the packages are not installed.
    """
    if not otel_endpoint():
        return None
    try:
        from isosim.observability.otlp import Tracing  # noqa: PLC0415
    except ImportError as error:
        raise Unavailable(
            f"tracing needs {error.name}, which is not installed: pip install 'isosim[tracing]'"
        ) from None
    return Tracing(name)
