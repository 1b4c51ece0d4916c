"""How large a request may be, how long it may take, and what every answer tells browsers and caches."""

import asyncio
from collections.abc import Awaitable, Iterable

from starlette.types import Scope

from service.core.errors import Unavailable
from service.settings import Settings

SMALL_BODY = 16_384  # bytes; of routes that take a few fields, some of which read their body before they see the key

# An answer of ours is data: it is never a page, never a script, in no frame, and in no cache on its way.
GUARD = [
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
]


def is_calibration(scope: Scope) -> bool:
    """Text or labels, which routes stream or bound themselves."""
    path: str = scope["path"]
    return path == "/calibrate" or (path.startswith("/domains/") and path.endswith("/labels"))


def body_limit(scope: Scope, settings: Settings) -> int:
    """Bytes."""
    if is_calibration(scope):
        return settings.max_calibration_bytes
    small = scope["path"].startswith(("/domains", "/calibrate/"))
    return min(SMALL_BODY, settings.max_body_bytes) if small else settings.max_body_bytes


def time_limit(scope: Scope, settings: Settings) -> float | None:
    """Seconds until nobody waits any more; None where a body is streamed, or events are."""
    return None if scope["path"].startswith(("/calibrate", "/domains")) else settings.request_timeout


async def within(seconds: float | None, work: Awaitable[None]) -> None:
    """Raises Unavailable where the work took longer; it is cancelled, and with it all that only it waited for."""
    try:
        async with asyncio.timeout(seconds) as clock:
            await work
    except TimeoutError as error:
        if not clock.expired():
            raise
        raise Unavailable(f"the request took longer than {seconds:g} s; ask for less at a time") from error


def guards(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """What protects an answer; nothing more for a page, which has its own policy."""
    return [] if any(name == b"content-security-policy" for name, _ in headers) else GUARD
