"""Every request before and after its route: id, limits, origin, key; headers, access log, metrics."""

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

from service.api.access_log import PROBES
from service.api.errors import unexpected
from service.api.parameters import below, check_query
from service.api.requests import Head, ScoringRoute, head_of, text_of
from service.api.state import Service
from service.api.trace import Trace
from service.core.errors import CallerLeft, Forbidden, NotReady, TooLarge, Unavailable

REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")

KEYLESS = PROBES | {"/ping", "/openapi.json"}
PAGES = ("/console", "/docs")
CLOSING = ((b"connection", b"close"),)


def keyless(method: str, path: str) -> bool:
    """Whether a route needs no key: probes, metrics, and pages, whose content comes from routes that need one."""
    return path in KEYLESS or below(path, PAGES) or (path == "/" and method in ("GET", "HEAD"))


def admit(scope: Scope, head: Head, service: Service, trace: Trace, limit: int, *, needs_key: bool) -> None:
    """Authenticates the request, and refuses what can be refused before its body is read.

    This is the one place where a key is looked at. What the key allows is asked where it is known what the request is
    for: `needs` (scopes), `resolve` (domains), `permitted_job`, `limits` (how much).

    Raises:
        TooLarge, Forbidden, NotReady, Unauthorized, InvalidInput
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


async def read_body(receive: Receive, limit: int) -> bytes:
    """The whole body. Raises TooLarge, or CallerLeft where the connection is closed before the body's end."""
    parts: list[bytes] = []
    taken, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise CallerLeft
        part: bytes = message.get("body", b"")
        parts.append(part)
        taken += len(part)
        if taken > limit:
            raise TooLarge(f"the body is larger than {limit} bytes")
        more = message.get("more_body", False)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def bounded(receive: Receive, limit: int) -> Receive:
    """Receives a body of at most `limit` bytes; a route that reads more raises TooLarge."""
    taken = 0

    async def receive_bounded() -> Message:
        nonlocal taken
        message = await receive()
        if message["type"] == "http.request":
            taken += len(message.get("body", b""))
            if taken > limit:
                raise TooLarge(f"the body is larger than {limit} bytes")
        return message

    return receive_bounded


CONNECTION = "isosim.connection"  # ASGI extension of server/http_protocol.py: takes whole answers, says who has left
AtOnce = Callable[[int, Iterable[tuple[bytes, bytes]], bytes], bool]  # status, headers, body; False: not now


class Answer:
    """The answer to one request: adds the headers that every answer has, and knows its status."""

    __slots__ = ("_at_once", "_send", "_service", "_trace", "started", "status")

    def __init__(self, send: Send, at_once: AtOnce | None, trace: Trace, service: Service) -> None:
        self._send, self._at_once, self._trace, self._service = send, at_once, trace, service
        self.status, self.started = 500, False

    async def send(self, message: Message) -> None:
        """Passes on what a route of FastAPI's sends."""
        if message["type"] == "http.response.start":
            self.status, self.started = message["status"], True
            given = message["headers"]
            closing = CLOSING if self._service.leaving else ()
            message["headers"] = [*given, *guards(given), *self._trace.as_headers(), *closing]
        elif not message.get("more_body", False):
            await self._leave()
        await self._send(message)

    async def _leave(self) -> None:
        """Before an answer's end: a caller may send his next request as soon as he has it."""
        told = self._trace.leave()
        if told is not None:
            await asyncio.wait([told], timeout=self._service.settings.redis_timeout)

    async def give(self, response: Response) -> None:
        """Sends an answer that is whole."""
        await self._leave()
        self.status, self.started = response.status_code, True
        leaving = self._service.leaving
        headers = [*response.raw_headers, *GUARD, *self._trace.as_headers(), *(CLOSING if leaving else ())]
        if not leaving and self._at_once is not None and self._at_once(self.status, headers, bytes(response.body)):
            return
        await self._send({"type": "http.response.start", "status": self.status, "headers": headers})
        await self._send({"type": "http.response.body", "body": response.body})


class Envelope:
    """The layer around all of FastAPI's; it answers the scoring routes itself.

    `outermost`: nothing between it and the server changes an answer, which then may be handed over whole.
    """

    def __init__(
        self, app: ASGIApp, scoring: Iterable[ScoringRoute], request_timeout: float, *, outermost: bool
    ) -> None:
        self.app, self.outermost = app, outermost
        self.time_limit = TimeLimit(request_timeout)
        self.scoring = {route.path: route for route in scoring}  # everything else is FastAPI's

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["method"] not in ("GET", "HEAD") and scope["path"] != "/":
            scope["path"] = scope["path"].removesuffix(
                "/"
            )  # Starlette's redirect has no body: curl would print nothing
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
            split_key=text_of(head, b"x-isosim-split-key") or request_id,
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
                await self.time_limit.bound(self._score(route, receive, limit, service, trace, answer))
        except (ClientDisconnect, CallerLeft):
            answer.status = 499  # the caller has closed the connection
        except Exception as error:
            if answer.started:
                raise
            await answer.give(await unexpected(Request(scope), error))
        finally:
            trace.leave()
            path = getattr(scope.get("route"), "path", "unmatched")
            seconds = time.perf_counter() - trace.started
            service.metrics.observe_request(path, answer.status, seconds)
            service.observer.end(scope, trace, span, path, answer.status, seconds)
            # All hold the connection, which holds them: without this, texts and vectors wait for the collector.
            trace.cause = None
            scope["state"].pop("trace", None)
            scope.pop("extensions", None)

    async def _score(
        self, route: ScoringRoute, receive: Receive, limit: int, service: Service, trace: Trace, answer: Answer
    ) -> None:
        await answer.give(await route.respond(await read_body(receive, limit), service, trace))

    async def _pass_on(self, scope: Scope, receive: Receive, head: Head, trace: Trace, answer: Answer) -> None:
        service: Service = scope["state"]["service"]
        limit = body_limit(scope, service)
        admit(scope, head, service, trace, limit, needs_key=not keyless(scope["method"], scope["path"]))
        answered = self.app(scope, bounded(receive, limit), answer.send)
        if is_bounded(scope):
            answered = self.time_limit.bound(answered)
        await answered


SMALL_BODY = 16_384  # bytes; of routes that take a few fields

# An answer of ours is data: it is never a page, never a script, in no frame, and in no cache on its way.
GUARD = [
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
]


def takes_file(scope: Scope) -> bool:
    """Text, labels or archives, which routes stream or bound themselves."""
    path: str = scope["path"]
    if path in ("/calibrate", "/inspect", "/domains/import"):
        return True
    return path.startswith("/domains/") and path.endswith("/labels")


def body_limit(scope: Scope, service: Service) -> int:
    """Bytes."""
    settings = service.settings
    if takes_file(scope):
        brought = any(one.artifact.kind == "vectors" for one in service.encoders.all)
        return settings.max_vector_bytes if brought else settings.max_calibration_bytes
    small = scope["path"].startswith(("/domains", "/calibrate/"))
    return min(SMALL_BODY, settings.max_body_bytes) if small else settings.max_body_bytes


def is_bounded(scope: Scope) -> bool:
    """Whether an answer has to be there in time: not where a body is streamed, or events are."""
    return not scope["path"].startswith(("/calibrate", "/domains", "/inspect"))


class TimeLimit:
    """Raises Unavailable where work takes longer than a number of seconds; it is cancelled, and with it all that only
    it waited for.

    One timer, for the oldest work, in place of one for each: those take as long as reading a body.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._begun: dict[asyncio.Task[Any], float] = {}  # s, monotonic; the oldest first
        self._late: set[asyncio.Task[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None  # that the timer runs on; None: there is none

    async def bound(self, work: Awaitable[None]) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine is run by one
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
        """Cancels what is late, and comes again when the oldest that is not will be."""
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
    """Headers that protect an answer; none for a page, which sets its own policy."""
    return [] if any(name == b"content-security-policy" for name, _ in headers) else GUARD


HARMLESS = {"GET", "HEAD", "OPTIONS"}
OWN = {"same-origin", "none"}  # Sec-Fetch-Site, which no page can set; none: the user's doing and no page's


def check_origin(method: str, head: Head, *, anonymous: bool, allowed: Collection[str] = ()) -> None:
    """Protects a server without keys, which the browser on the same machine can reach like any other.

    `anonymous`: everybody may ask, whatever the server is called. `allowed`: origins of pages that may ask.

    Raises:
        Forbidden: a browser says that another site sent this; or the server was asked for by a name that only the
            owner of a domain could have pointed at this machine (DNS rebinding).
    """
    host, origin, site = text_of(head, b"host"), text_of(head, b"origin"), text_of(head, b"sec-fetch-site")
    if (site or origin) and method not in HARMLESS and is_foreign(site, origin, host) and origin not in allowed:
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
            "location", "retry-after", "x-compute-tokens", "x-isosim-contract", "x-isosim-domain", "x-isosim-encoder",
            "x-isosim-flags", "x-isosim-ignored", "x-isosim-version", "x-request-id", "x-should-retry",
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


@lru_cache(maxsize=256)
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
