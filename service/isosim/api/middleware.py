"""The layer around all routes: admits a request by its route's policy, and answers with the headers of all answers."""

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Sequence
from random import getrandbits
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from isosim.api.errors import unexpected
from isosim.api.parameters import flat
from isosim.api.policy import BYTES_A_TEXT, UNKNOWN, Policy, admit, head_of, policy_of, text_of
from isosim.api.requests import ScoringRoute
from isosim.api.state import Service
from isosim.api.trace import Trace
from isosim.errors import CallerLeft, TooLarge, Unavailable

REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
CLOSING = ((b"connection", b"close"),)
UNCHARGED = (401, 429)  # no key; a key whose rate is used up, which further debts would block for longer and longer
# ASGI extensions that server/guard.py provides.
ANSWER = "isosim.answer"
WATCH = "isosim.watch"  # see `Trace.watch`
# Sends status, headers and body of an answer in one piece; returns False if nothing was sent.
AtOnce = Callable[[int, Iterable[tuple[bytes, bytes]], bytes], bool]

# Response headers of JSON answers: no caching, framing, scripts or sniffing.
GUARD = [
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
]


class Answer:
    """Receives the body of one request, and sends its answer with the headers that all answers have."""

    __slots__ = ("_at_once", "_receive", "_send", "_service", "_trace", "limit", "started", "status")

    def __init__(self, receive: Receive, send: Send, at_once: AtOnce | None, trace: Trace, service: Service) -> None:
        self._receive, self._send, self._at_once = receive, send, at_once
        self._trace, self._service = trace, service
        self.status, self.started = 500, False
        self.limit = 0  # maximum size of the body, in bytes

    async def receive(self) -> Message:
        """ASGI `receive`. Raises TooLarge if the body is larger than `limit`."""
        message = await self._receive()
        if message["type"] == "http.request":
            self._trace.received += len(message.get("body", b""))
            if self._trace.received > self.limit:
                raise TooLarge(f"the body is larger than {self.limit} bytes")
        return message

    async def body(self) -> bytes:
        """The whole body. Raises TooLarge, or CallerLeft if the connection closes before the body's end."""
        parts: list[bytes] = []
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise CallerLeft
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                return b"".join(parts)

    async def send(self, message: Message) -> None:
        """ASGI `send`."""
        if message["type"] == "http.response.start":
            self.status, self.started = message["status"], True
            given = message["headers"]
            own = any(name == b"content-security-policy" for name, _ in given)  # a page, which has its own policy
            closing = CLOSING if self._service.leaving else ()
            message["headers"] = [*given, *(() if own else GUARD), *self._trace.as_headers(), *closing]
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
    """ASGI layer around FastAPI. Calls scoring routes itself, because FastAPI's layers would take longer than all other
    work for a request whose texts are cached, and passes other requests to FastAPI."""

    def __init__(self, app: ASGIApp, routes: Sequence[BaseRoute]) -> None:
        self.app = app
        self.routes = [(route, policy_of(route)) for route in flat(routes)]
        self.scoring = {route.path: (route, policy) for route, policy in self.routes if isinstance(route, ScoringRoute)}

    def route_of(self, scope: Scope) -> tuple[BaseRoute | None, Policy]:
        """The route of a request with its policy."""
        scoring = self.scoring.get(scope["path"]) if scope["method"] == "POST" else None
        if scoring is not None:
            return scoring
        return next((each for each in self.routes if each[0].matches(scope)[0] is Match.FULL), (None, UNKNOWN))

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
        route, policy = self.route_of(scope)
        scope["route"] = route
        trace = Trace(request_id, time.perf_counter(), probe=policy.probe)
        extensions = scope.get("extensions") or {}
        if WATCH in extensions:
            trace.watch = extensions[WATCH]
        scope["state"] |= {"request_id": request_id, "trace": trace}
        # CORSMiddleware adds headers to the answers for pages of other sites, which `send` passes to it.
        at_once = extensions.get(ANSWER) if b"origin" not in head else None
        answer = Answer(receive, send, at_once, trace, service)
        span = service.observer.begin(scope, trace)
        time_limit = asyncio.timeout(service.settings.request_timeout if policy.timed else None)
        try:
            async with time_limit:
                answer.limit = await admit(scope, head, policy, service, trace)
                if isinstance(route, ScoringRoute):
                    route.check(head)
                    await answer.give(await route.respond(await answer.body(), service, trace))
                else:
                    if b"cookie" in head:
                        # No route reads cookies, but FastAPI parses them: Python 3.11.7 took 21 s for 60 kB of them.
                        scope["headers"] = [one for one in scope["headers"] if one[0] != b"cookie"]
                    await self.app(scope, answer.receive, answer.send)
        except (ClientDisconnect, CallerLeft):
            answer.status = 499  # the caller has closed the connection
        except Exception as error:
            if answer.started:
                raise
            if isinstance(error, TimeoutError) and time_limit.expired():
                seconds = service.settings.request_timeout
                error = Unavailable(f"the request took longer than {seconds:g} s; ask for less at a time")
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
