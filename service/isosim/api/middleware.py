"""Middleware around all routes: checks size, origin and key before a route; adds headers, log and metrics after it."""

import asyncio
import ipaddress
import re
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import lru_cache
from random import getrandbits
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from isosim.api.access_log import PROBES
from isosim.api.errors import unexpected
from isosim.api.parameters import below, check_query
from isosim.api.requests import Head, ScoringRoute, head_of, text_of
from isosim.api.state import Service
from isosim.api.trace import Trace
from isosim.errors import CallerLeft, Forbidden, NotReady, TooLarge, Unavailable

REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")

KEYLESS = PROBES | {"/ping", "/openapi.json"}
PAGES = ("/console", "/docs")
CLOSING = ((b"connection", b"close"),)


def keyless(method: str, path: str) -> bool:
    """Whether a route needs no key: probes, metrics, and pages, which hold no data of their own."""
    return path in KEYLESS or below(path, PAGES) or (path == "/" and method in ("GET", "HEAD"))


def admit(scope: Scope, head: Head, service: Service, trace: Trace, limit: int, *, needs_key: bool) -> None:
    """Authenticates the request and applies the checks that do not need its body.

    Only this function reads a key. What the key permits is checked later: scopes in `needs`, domains in `resolve` and
    `permitted_job`, rates in `service.limits`.

    Raises:
        TooLarge: the announced length of the body exceeds `limit`.
        Forbidden: a web page of another site sent the request (`check_origin`).
        NotReady: the server is starting or stopping.
        Unauthorized: the key is missing or wrong.
        InvalidInput: the query has a parameter that the route does not take.
    """
    settings = service.settings
    declared = head.get(b"content-length", b"0")
    if declared.isdigit() and int(declared) > limit:
        raise TooLarge(f"the body has {int(declared)} bytes, at most {limit} are taken")
    if settings.api_keys_file is None:
        check_origin(scope["method"], head, anonymous=settings.allow_anonymous, allowed=settings.cors_origins)
    if not service.taking_work and scope["path"] not in PROBES:
        raise NotReady("the server is starting or stopping")
    if needs_key:
        trace.grant = service.keys.identify(text_of(head, b"authorization"))
    if scope["query_string"]:
        check_query(scope)


async def read_body(receive: Receive, limit: int, trace: Trace) -> bytes:
    """Reads the whole body. Raises TooLarge, or CallerLeft if the connection closes before the end of the body."""
    parts: list[bytes] = []
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise CallerLeft
        part: bytes = message.get("body", b"")
        parts.append(part)
        trace.received += len(part)
        if trace.received > limit:
            raise TooLarge(f"the body is larger than {limit} bytes")
        more = message.get("more_body", False)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def bounded(receive: Receive, limit: int, trace: Trace) -> Receive:
    """Wraps `receive` so that reading more than `limit` bytes of body raises TooLarge."""

    async def receive_bounded() -> Message:
        message = await receive()
        if message["type"] == "http.request":
            trace.received += len(message.get("body", b""))
            if trace.received > limit:
                raise TooLarge(f"the body is larger than {limit} bytes")
        return message

    return receive_bounded


# A refused body costs its key one text for this many bytes or fewer. Refusing 10 kB keeps the event loop at most 0.5 ms
# (2 MB: 100 ms, loadtest/hostile.py), about as long as an uncached text does (loadtest/README.md).
BYTES_A_TEXT = 10_000
UNCHARGED = (401, 429)  # no key; a key whose rate is used up, which further debts would block for longer and longer


async def check_rate(service: Service, trace: Trace, head: Head) -> None:
    """Raises Overloaded before the body is read, if the body is large and the key's rate is used up."""
    size = head.get(b"content-length", b"")
    small = size.isdigit() and int(size) <= BYTES_A_TEXT
    if trace.grant.rate is not None and not small:
        await service.limits.admit(trace.grant, 0)


CONNECTION = "isosim.connection"  # name of the ASGI extension that server/http_protocol.py provides
# Sends status, headers and body of an answer in one piece; returns False if nothing was sent.
AtOnce = Callable[[int, Iterable[tuple[bytes, bytes]], bytes], bool]


class Answer:
    """Sends the answer to one request: adds the headers that all answers have, and records the status."""

    __slots__ = ("_at_once", "_send", "_service", "_trace", "started", "status")

    def __init__(self, send: Send, at_once: AtOnce | None, trace: Trace, service: Service) -> None:
        self._send, self._at_once, self._trace, self._service = send, at_once, trace, service
        self.status, self.started = 500, False

    async def send(self, message: Message) -> None:
        """ASGI `send` for routes that FastAPI answers."""
        if message["type"] == "http.response.start":
            self.status, self.started = message["status"], True
            given = message["headers"]
            closing = CLOSING if self._service.leaving else ()
            message["headers"] = [*given, *guards(given), *self._trace.as_headers(), *closing]
        elif not message.get("more_body", False):
            await self._charge()
        await self._send(message)

    async def _charge(self) -> None:
        """Charges a refused body. Called before the end of the answer is sent, because the client may send its next
        request as soon as it has the answer."""
        trace = self._trace
        if 400 <= self.status < 500 and self.status not in UNCHARGED and trace.received:
            await self._service.limits.owe(trace.grant, -(-trace.received // BYTES_A_TEXT))

    async def give(self, response: Response) -> None:
        """Sends a complete response."""
        self.status, self.started = response.status_code, True
        await self._charge()
        leaving = self._service.leaving
        headers = [*response.raw_headers, *GUARD, *self._trace.as_headers(), *(CLOSING if leaving else ())]
        if not leaving and self._at_once is not None and self._at_once(self.status, headers, bytes(response.body)):
            return
        await self._send({"type": "http.response.start", "status": self.status, "headers": headers})
        await self._send({"type": "http.response.body", "body": response.body})


class Envelope:
    """Layer around the FastAPI application; calls the scoring routes itself and passes other requests to FastAPI.

    `outermost`: false if CORSMiddleware wraps this layer and has to see the answers. If true, the answers of scoring
    routes can be sent in one piece.
    """

    def __init__(
        self, app: ASGIApp, scoring: Iterable[ScoringRoute], request_timeout: float, *, outermost: bool
    ) -> None:
        self.app, self.outermost = app, outermost
        self.time_limit = TimeLimit(request_timeout)
        self.scoring = {route.path: route for route in scoring}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["method"] not in ("GET", "HEAD") and scope["path"] != "/":
            # Accepts a path that ends with a slash. Starlette would answer with a redirect, which curl does not follow.
            scope["path"] = scope["path"].removesuffix("/")
        service: Service = scope["state"]["service"]
        head = head_of(scope["headers"])
        given = text_of(head, b"x-request-id")
        request_id = given if REQUEST_ID.fullmatch(given) else f"{getrandbits(128):032x}"
        connection = scope.get("extensions", {}).get(CONNECTION, {})
        trace = Trace(
            request_id,
            time.perf_counter(),
            receive,
            connection.get("on_left"),
        )
        scope["state"] |= {"request_id": request_id, "trace": trace}
        at_once = connection.get("answer") if self.outermost and scope["method"] == "POST" else None
        answer = Answer(send, at_once, trace, service)
        span = service.observer.begin(scope, trace)
        try:
            route = self.scoring.get(scope["path"]) if scope["method"] == "POST" else None
            if route is None:
                await self._pass_on(scope, receive, head, trace, answer)
            else:
                scope["route"] = route
                limit = service.settings.max_body_bytes
                admit(scope, head, service, trace, limit, needs_key=True)
                route.check(head, trace)
                await check_rate(service, trace, head)
                await self.time_limit.bound(self._score(route, receive, limit, service, trace, answer))
        except (ClientDisconnect, CallerLeft):
            answer.status = 499  # the caller has closed the connection
        except Exception as error:
            if answer.started:
                raise
            await answer.give(await unexpected(Request(scope), error))
        finally:
            path = getattr(scope.get("route"), "path", "unmatched")
            seconds = time.perf_counter() - trace.started
            service.metrics.observe_request(path, answer.status, seconds)
            service.observer.end(scope, trace, span, path, answer.status, seconds)
            # Breaks reference cycles with the connection: they would keep texts and vectors in memory until the
            # next garbage collection.
            trace.cause = None
            scope["state"].pop("trace", None)
            scope.pop("extensions", None)

    async def _score(
        self, route: ScoringRoute, receive: Receive, limit: int, service: Service, trace: Trace, answer: Answer
    ) -> None:
        await answer.give(await route.respond(await read_body(receive, limit, trace), service, trace))

    async def _pass_on(self, scope: Scope, receive: Receive, head: Head, trace: Trace, answer: Answer) -> None:
        service: Service = scope["state"]["service"]
        limit = body_limit(scope, service)
        admit(scope, head, service, trace, limit, needs_key=not keyless(scope["method"], scope["path"]))
        if scope["method"] in ("POST", "PUT"):
            await check_rate(service, trace, head)
        answered = self.app(scope, bounded(receive, limit, trace), answer.send)
        if is_bounded(scope):
            answered = self.time_limit.bound(answered)
        await answered


SMALL_BODY = 16_384  # maximum body size, in bytes, of routes that take only a few fields

# Response headers of JSON answers: no caching, framing, scripts or sniffing.
GUARD = [
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
]


def takes_file(scope: Scope) -> bool:
    """Whether the route takes a file of texts, labels or versions. Such a route streams or bounds its body itself."""
    path: str = scope["path"]
    if path in ("/calibrate", "/inspect", "/domains/import"):
        return True
    return path.startswith("/domains/") and path.endswith("/labels")


def body_limit(scope: Scope, service: Service) -> int:
    """Largest body (bytes) that the request's path accepts."""
    settings = service.settings
    if takes_file(scope):
        brought = any(one.artifact.kind == "vectors" for one in service.encoders.all)
        return settings.max_vector_bytes if brought else settings.max_calibration_bytes
    small = scope["path"].startswith(("/domains", "/calibrate/"))
    return min(SMALL_BODY, settings.max_body_bytes) if small else settings.max_body_bytes


def is_bounded(scope: Scope) -> bool:
    """Whether `request_timeout` applies to the request. False for paths under /calibrate, /domains and /inspect,
    because some of these paths receive files, send files or stream events."""
    return not scope["path"].startswith(("/calibrate", "/domains", "/inspect"))


class TimeLimit:
    """Cancels a request that takes longer than `seconds`; `bound` then raises Unavailable.

    All requests share one timer, which is set for the oldest request. A timer for each request would cost as much as
    reading the request's body.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._begun: dict[asyncio.Task[Any], float] = {}  # time.monotonic() at the start; oldest first
        self._late: set[asyncio.Task[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None  # event loop of the timer; None if no timer is set

    async def bound(self, work: Awaitable[None]) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine always runs in a task
        self._begun[task] = time.monotonic()
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            loop.call_later(self.seconds, self._look)
        try:
            await work
        except asyncio.CancelledError as error:
            if task in self._late and not task.uncancel():
                why = f"the request took longer than {self.seconds:g} s; ask for less at a time"
                raise Unavailable(why) from error
            raise
        finally:
            del self._begun[task]
            self._late.discard(task)

    def _look(self) -> None:
        """Cancels requests that are late, and sets the timer for the oldest of the others."""
        loop, self._loop = self._loop, None
        latest = time.monotonic() - self.seconds
        for task, begun in self._begun.items():
            if begun > latest:
                if loop is not None:
                    self._loop = loop
                    loop.call_later(begun - latest, self._look)
                break
            if task not in self._late:
                self._late.add(task)
                task.cancel()


def guards(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Protective headers for an answer; empty for a page, which sets its own policy."""
    return [] if any(name == b"content-security-policy" for name, _ in headers) else GUARD


HARMLESS = {"GET", "HEAD", "OPTIONS"}
OWN = {"same-origin", "none"}  # harmless values of the header Sec-Fetch-Site; none: the user typed the address


def check_origin(method: str, head: Head, *, anonymous: bool, allowed: Collection[str] = ()) -> None:
    """Protects a server without keys from web pages that use the user's browser to reach it.

    Args:
        anonymous: accept any host name (ISOSIM_ALLOW_ANONYMOUS).
        allowed: origins of pages that may send requests (ISOSIM_CORS_ORIGINS).

    Raises:
        Forbidden: another site's page sent the request; or the Host header is a public name, which an attacker could
            have pointed at this machine (DNS rebinding).
    """
    host, origin, site = text_of(head, b"host"), text_of(head, b"origin"), text_of(head, b"sec-fetch-site")
    if (site or origin) and method not in HARMLESS and is_foreign(site, origin, host) and origin not in allowed:
        raise Forbidden("requests from other sites need an API key, or their origin in ISOSIM_CORS_ORIGINS")
    if not anonymous and not is_local(host):
        raise Forbidden(
            "a server without keys answers only requests whose Host is an address or a local name; "
            "behind a proxy that authenticates callers, set ISOSIM_ALLOW_ANONYMOUS=true"
        )


def cors(origins: Sequence[str]) -> dict[str, Any]:
    """Options of Starlette's CORSMiddleware for exact origins. Cookies are not allowed: keys travel in a header."""
    return {
        "allow_origins": list(origins),
        "allow_methods": ["GET", "POST", "PUT", "DELETE"],
        "allow_headers": ["*"],  # mirrors the requested ones: clients send their own (x-stainless-*, x-fern-*)
        "expose_headers": [
            "location", "retry-after", "x-compute-tokens", "x-isosim-contract", "x-isosim-domain", "x-isosim-encoder",
            "x-isosim-flags", "x-isosim-ignored", "x-isosim-version", "x-request-id", "x-should-retry",
        ],
        "max_age": 600,
    }  # fmt: skip


def is_foreign(site: str, origin: str, host: str) -> bool:
    """Whether a page of another origin sent the request. Another port of this machine is another origin too.

    Origin decides if Sec-Fetch-Site is missing: some browsers leave it out (plain http to another machine, Safari
    before 16.4), but send Origin with all methods except GET and HEAD. Clients that are not browsers send neither
    header; their requests are not foreign.
    """
    if site:
        return site not in OWN
    return bool(origin) and authority(origin.partition("://")[2]) != authority(host)


def authority(host: str) -> str:
    """Host in lower case, without the port if this is 80 or 443. Either may be the default port: the scheme is unknown,
    because TLS may end at a proxy."""
    return host.lower().removesuffix(":80").removesuffix(":443")


# Top-level names that cannot be registered, so that no attacker's DNS server answers for them: RFC 6761 (localhost,
# test), RFC 6762 (local), RFC 8375 (home.arpa), ICANN's resolution of 29 July 2024 (internal).
RESERVED = (".localhost", ".test", ".local", ".home.arpa", ".internal")


@lru_cache(maxsize=256)
def is_local(host: str) -> bool:
    """Whether a Host header cannot be a public DNS name: it is an address, a name without a dot, or a RESERVED one."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    name = name.rstrip(".").lower()
    if "." not in name and ":" not in name:
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return name.endswith(RESERVED)
    return True
