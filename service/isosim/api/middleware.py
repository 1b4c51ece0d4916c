"""The layer around all routes: admits a request by its route's policy, and answers with the headers of all answers."""

import asyncio
import re
import time
from collections.abc import Sequence
from random import getrandbits
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from isosim.api.errors import answer_to
from isosim.api.parameters import flat
from isosim.api.policy import BYTES_A_TEXT, UNKNOWN, Policy, admit, head_of, policy_of, text_of
from isosim.api.requests import ScoringRoute
from isosim.api.state import Service
from isosim.api.trace import Trace, unwatched
from isosim.errors import CallerLeft, TooLarge, Unavailable
from isosim.threads import FEW

REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
CLOSING = ((b"connection", b"close"),)
ANSWER, WATCH = "isosim.answer", "isosim.watch"  # ASGI extensions of server/guard.py: see `Trace`
UNCHARGED = (401, 429)  # no key; a key whose rate is used up, which further debts would block for longer and longer

# Response headers of JSON answers: no caching, framing, scripts or sniffing.
GUARD = [
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
]


def counted(receive: Receive, trace: Trace) -> Receive:
    """ASGI `receive` that counts the body's bytes. Raises TooLarge if there are more than `trace.largest`."""

    async def receive_part() -> Message:
        message = await receive()
        if message["type"] == "http.request":
            trace.received += len(message.get("body", b""))
            if trace.received > trace.largest:
                raise TooLarge(f"the body is larger than {trace.largest} bytes")
        return message

    return receive_part


async def body_of(receive: Receive) -> bytes:
    """The whole body. Raises CallerLeft if the connection closes before the body's end."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise CallerLeft
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


async def begin_answer(
    trace: Trace, service: Service, status: int, given: list[tuple[bytes, bytes]]
) -> list[tuple[bytes, bytes]]:
    """Adds the headers of all answers. Charges a refused body first, because the client may send its next request as
    soon as it has the answer."""
    trace.status, trace.answering = status, True
    if 400 <= status < 500 and status not in UNCHARGED and trace.received:
        await service.limits.owe(trace.grant, -(-trace.received // BYTES_A_TEXT))
    own = any(name == b"content-security-policy" for name, _ in given)  # a page, which has its own policy
    return [*given, *(() if own else GUARD), *trace.as_headers(), *(CLOSING if service.leaving else ())]


def completed(send: Send, trace: Trace, service: Service) -> Send:
    """ASGI `send` that begins answers by `begin_answer`."""

    async def send_part(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = await begin_answer(trace, service, message["status"], message["headers"])
        await send(message)

    return send_part


async def give(response: Response, send: Send, trace: Trace, service: Service) -> None:
    """Sends a complete response, in one piece if the connection can."""
    if len(response.body) > FEW * 1024:
        await service.pace()
    headers = await begin_answer(trace, service, response.status_code, response.raw_headers)
    if not service.leaving and trace.answer is not None and trace.answer(trace.status, headers, bytes(response.body)):
        return
    await send({"type": "http.response.start", "status": trace.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})


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
        wanted = text_of(head, b"x-request-id")
        request_id = wanted if REQUEST_ID.fullmatch(wanted) else f"{getrandbits(128):032x}"
        route, policy = self.route_of(scope)
        scope["route"] = route
        given = scope.get("extensions") or {}
        # CORSMiddleware adds headers to the answers for pages of other sites, by `send`.
        answer = None if b"origin" in head else given.get(ANSWER)
        trace = Trace(request_id, time.perf_counter(), answer, given.get(WATCH, unwatched), probe=policy.probe)
        scope["state"] |= {"request_id": request_id, "trace": trace}
        receive = counted(receive, trace)
        service.observer.begin(scope, trace)
        time_limit = asyncio.timeout(service.settings.request_timeout if policy.timed else None)
        try:
            async with time_limit:
                trace.largest = await admit(scope, head, policy, service, trace)
                if isinstance(route, ScoringRoute):
                    response = await route.respond(await body_of(receive), service, trace)
                    await give(response, send, trace, service)
                else:
                    if b"cookie" in head:
                        # No route reads cookies, but FastAPI parses them: Python 3.11.7 took 21 s for 60 kB of them.
                        scope["headers"] = [one for one in scope["headers"] if one[0] != b"cookie"]
                    await self.app(scope, receive, completed(send, trace, service))
        except (ClientDisconnect, CallerLeft):
            trace.status = 499  # the caller has closed the connection
        except Exception as error:
            if trace.answering:
                raise
            if isinstance(error, TimeoutError) and time_limit.expired():
                seconds = service.settings.request_timeout
                error = Unavailable(f"the request took longer than {seconds:g} s; ask for less at a time")
            await give(answer_to(Request(scope), error), send, trace, service)
        finally:
            path = getattr(scope.get("route"), "path", "unmatched")
            seconds = time.perf_counter() - trace.started
            service.metrics.observe_request(path, trace.status, seconds)
            service.observer.end(scope, trace, path, seconds)
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
            "x-isosim-flags", "x-isosim-ignored", "x-isosim-left-out", "x-isosim-version", "x-request-id",
            "x-should-retry",
        ],
        "max_age": 600,
    }  # fmt: skip
