"""Every request before and after its route: id, limits, origin, key; headers, access log, metrics."""

import asyncio
import ipaddress
import os
import re
import time
from collections.abc import Awaitable, Collection, Iterable, Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.access_log import PROBES
from service.api.errors import unexpected
from service.api.parameters import below, check_query
from service.api.requests import ScoringRoute
from service.api.state import Service
from service.api.trace import Trace
from service.core.errors import CallerLeft, Forbidden, NotReady, TooLarge, Unavailable
from service.settings import Settings

REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")

KEYLESS = PROBES | {"/ping", "/openapi.json"}
PAGES = ("/console", "/docs")
CLOSING = ((b"connection", b"close"),)


def keyless(method: str, path: str) -> bool:
    """Whether a route needs no key: probes, metrics, and pages, whose content comes from routes that need one."""
    return path in KEYLESS or below(path, PAGES) or (path == "/" and method in ("GET", "HEAD"))


def admit(scope: Scope, service: Service, trace: Trace, limit: int) -> None:
    """Authenticates the request, and refuses what can be refused before its body is read.

    This is the one place where a key is looked at. What the key allows is asked where it is known what the request is
    for: `needs` (scopes), `resolve` (domains), `permitted_job`, `limits` (how much).

    Raises:
        TooLarge, Forbidden, NotReady, Unauthorized, InvalidInput
    """
    settings = service.settings
    declared = next((v for k, v in scope["headers"] if k == b"content-length"), b"0")
    if declared.isdigit() and int(declared) > limit:
        raise TooLarge(f"the body has {int(declared)} bytes, at most {limit} are taken")
    if settings.api_keys_file is None:
        check_origin(scope, anonymous=settings.allow_anonymous, allowed=settings.cors_origins)
    if not service.taking_work and scope["path"] not in PROBES:
        raise NotReady("the server is starting or stopping")
    if not keyless(scope["method"], scope["path"]):
        trace.grant = service.keys.identify(Headers(scope=scope).get("authorization"))
    check_query(scope)


class Envelope:
    """The outermost layer below the server. Plain ASGI: BaseHTTPMiddleware would cost a task a request."""

    def __init__(self, app: ASGIApp, scoring: Iterable[ScoringRoute] = ()) -> None:
        self.app = app
        self.scoring = {route.path: route for route in scoring}  # answered here; everything else is FastAPI's

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self.scoring.get(scope["path"]) if scope["method"] == "POST" else None
        if route is None:
            await self.app(scope, receive, send)
            return
        scope["route"] = route
        response = await route.respond(Request(scope, receive))
        await response(scope, receive, send)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        service = scope["state"]["service"]
        given = split_key = ""
        for name, value in scope["headers"]:
            if name == b"x-request-id":
                given = given or value.decode("latin-1")
            elif name == b"x-isosim-split-key":
                split_key = split_key or value.decode("latin-1")
        request_id = given if REQUEST_ID.fullmatch(given) else os.urandom(16).hex()
        trace = Trace(request_id, time.perf_counter(), receive, split_key=split_key or request_id)
        scope["state"] = {**scope["state"], "request_id": request_id, "trace": trace}
        status, started = 500, False
        settings = service.settings
        limit = body_limit(scope, settings)
        taken = 0

        async def limited_receive() -> Message:
            nonlocal taken
            message = await receive()
            if message["type"] == "http.request":
                taken += len(message.get("body", b""))
                if taken > limit:
                    raise TooLarge(f"the body is larger than {limit} bytes")
            return message

        async def send_with_headers(message: Message) -> None:
            nonlocal status, started
            if message["type"] == "http.response.start":
                status, started = message["status"], True
                given = message["headers"]
                own = (b"x-request-id", request_id.encode()), *trace.as_headers()
                message["headers"] = [*given, *guards(given), *own, *(CLOSING if service.leaving else ())]
            await send(message)

        service.metrics.in_flight.inc()
        span = service.observer.begin(scope, trace)
        try:
            admit(scope, service, trace, limit)
            await within(time_limit(scope, settings), self._respond(scope, limited_receive, send_with_headers))
        except (ClientDisconnect, CallerLeft):
            status = 499  # the caller hung up; there is nobody to answer
        except Exception as error:
            if started:
                raise
            await unexpected(Request(scope), error)(scope, receive, send_with_headers)
        finally:
            trace.release()
            route = getattr(scope.get("route"), "path", "unmatched")
            seconds = time.perf_counter() - trace.started
            service.metrics.in_flight.dec()
            service.metrics.observe_request(route, status, seconds)
            service.observer.end(scope, trace, span, route, status, seconds)


SMALL_BODY = 16_384  # bytes; of routes that take a few fields

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
    """Headers that protect an answer; none for a page, which sets its own policy."""
    return [] if any(name == b"content-security-policy" for name, _ in headers) else GUARD


HARMLESS = {"GET", "HEAD", "OPTIONS"}
OWN = {"same-origin", "none"}  # Sec-Fetch-Site, which no page can set; none: the user's doing and no page's


def check_origin(scope: Scope, *, anonymous: bool, allowed: Collection[str] = ()) -> None:
    """Protects a server without keys, which the browser on the same machine can reach like any other.

    `anonymous`: everybody may ask, whatever the server is called. `allowed`: origins of pages that may ask.

    Raises:
        Forbidden: a browser says that another site sent this; or the server was asked for by a name that only the
            owner of a domain could have pointed at this machine (DNS rebinding).
    """
    site = host = origin = ""
    for name, value in scope["headers"]:
        if name == b"sec-fetch-site":
            site = value.decode("latin-1")
        elif name == b"host":
            host = value.decode("latin-1")
        elif name == b"origin":
            origin = value.decode("latin-1")
    if scope["method"] not in HARMLESS and is_foreign(site, origin, host) and origin not in allowed:
        raise Forbidden("requests from other sites need an API key, or their origin in ISOSIM_CORS_ORIGINS")
    if not anonymous and not is_local(host):
        raise Forbidden(
            "a server without keys answers to an address or a name of this machine alone; "
            "behind a proxy that asks who somebody is, set ISOSIM_ALLOW_ANONYMOUS=true"
        )


def cors(origins: Sequence[str]) -> dict[str, Any]:
    """Starlette's CORSMiddleware for exact origins. Keys travel in a header, so no credentials of the browser's."""
    return {
        "allow_origins": list(origins),
        "allow_methods": ["GET", "POST", "PUT", "DELETE"],
        "allow_headers": ["authorization", "content-type", "idempotency-key", "x-isosim-split-key", "x-request-id"],
        "expose_headers": [
            "location", "retry-after", "x-compute-tokens", "x-isosim-domain", "x-isosim-encoder", "x-isosim-flags",
            "x-isosim-ignored", "x-isosim-version", "x-request-id", "x-should-retry",
        ],
        "max_age": 600,
    }  # fmt: skip


def is_foreign(site: str, origin: str, host: str) -> bool:
    """Whether a page that is not this server's sent this, another port's of the same machine included.

    A browser that leaves out Sec-Fetch-Site (plain http to another machine, Safari before 16.4) still names the page's
    origin with whatever is no GET; clients that are no browsers send neither.
    """
    if site:
        return site not in OWN
    return bool(origin) and authority(origin.partition("://")[2]) != authority(host)


def authority(host: str) -> str:
    """Without a default port, of either scheme: TLS may end at a proxy."""
    return host.lower().removesuffix(":80").removesuffix(":443")


def is_local(host: str) -> bool:
    """Whether nobody on the internet could own this name: an address, or a name without a dot."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    name = name.rstrip(".").lower()
    if "." not in name and ":" not in name:
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return name.endswith(".localhost")
    return True
