"""What happens to every request: an id, a body limit, timing headers, a duration in the metrics."""

import os
import re
import time
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.errors import unexpected
from service.api.limits import body_limit, guards, time_limit, within
from service.api.names import check_query
from service.api.origin import check_origin
from service.api.spans import Scored
from service.api.state import Service
from service.core.embedding import Timings
from service.core.errors import CallerLeft, InvalidInput, NotReady, TooLarge
from service.core.grants import NOBODY, Grant
from service.core.rate_limit import Release, nothing

REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
OPEN = {
    "/livez",
    "/readyz",
    "/metrics",
    "/health",
    "/v2/health/live",
    "/v2/health/ready",
}  # answered before the server is ready

CLOSING = ((b"connection", b"close"),)


@dataclass
class Trace:
    """What a request leaves behind for its headers; a route fills it in."""

    request_id: str
    started: float  # s, perf_counter
    receive: Receive
    timings: Timings = field(default_factory=Timings)
    headers: dict[str, str] = field(default_factory=dict)
    scored: Scored | None = None
    error_type: str | None = None  # of the answer, where it is an error
    grant: Grant = NOBODY  # until its key was checked
    release: Release = nothing  # of what it holds of its key's limits
    split_key: str = ""  # by which a split sends requests to one encoder or the other; the id where none was given

    async def caller_left(self) -> None:
        """Returns when the connection is closed; to be awaited after the body was read."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    def as_headers(self) -> list[tuple[bytes, bytes]]:
        """The route's headers and text-embeddings-inference's timings, in milliseconds."""
        timings = self.timings
        return [
            *((name.encode(), value.encode()) for name, value in self.headers.items()),
            (b"x-tokenization-time", b"%.3f" % (timings.tokenization * 1e3)),
            (b"x-queue-time", b"%.3f" % (timings.queue * 1e3)),
            (b"x-inference-time", b"%.3f" % (timings.inference * 1e3)),
            (b"x-compute-tokens", b"%d" % timings.tokens),
            (b"x-total-time", b"%.3f" % ((time.perf_counter() - self.started) * 1e3)),
        ]


def admit(scope: Scope, service: Service, limit: int) -> None:
    """Raises TooLarge, Forbidden, NotReady, InvalidInput or Unauthorized for what is refused unread."""
    settings = service.settings
    declared = next((v for k, v in scope["headers"] if k == b"content-length"), b"0")
    if declared.isdigit() and int(declared) > limit:
        raise TooLarge(f"the body has {int(declared)} bytes, at most {limit} are taken")
    if settings.api_keys_file is None:
        check_origin(scope, anonymous=settings.allow_anonymous, allowed=settings.cors_origins)
    if not service.taking_work and scope["path"] not in OPEN:
        raise NotReady("the server is starting or stopping")
    try:
        check_query(scope)
    except InvalidInput:  # told to callers with a key alone, as all that is wrong with a request
        service.keys.identify(Headers(scope=scope).get("authorization"))
        raise


class Envelope:
    """The outermost layer below the server. Plain ASGI: BaseHTTPMiddleware would cost a task a request."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

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
            admit(scope, service, limit)
            await within(time_limit(scope, settings), self.app(scope, limited_receive, send_with_headers))
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
