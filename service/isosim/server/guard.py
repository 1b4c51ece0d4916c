"""uvicorn's HTTP protocol with limits for what one connection may send and hold.

uvicorn itself limits only idle time. Without this class, a client could hold a connection and its memory forever by
sending one byte a second or endless headers, and one read could start thousands of pipelined requests.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from isosim.api.middleware import ANSWER, WATCH

# Maximum size of request line and headers together. In a chunked body, the same maximum applies to the chunk headers
# between two pieces of data, and to the trailers.
MAX_HEADER_BYTES = 64 * 1024
STEP = 16 * 1024  # bytes that the parser gets in one call; headers may be larger than the maximum by twice as much
# Maximum number of requests of a connection that are not answered. Browsers, HTTP libraries and proxies send one at a
# time; each takes 3 kB until it is answered, and one read may contain 8,000.
MAX_UNANSWERED = 16
# A body may continue to arrive for this many seconds after its request was answered. If the connection were closed at
# once, the client might not read the answer.
UNREAD_SECONDS = 5.0
MIN_TRANSFER_RATE = 8_000  # bytes/s at which a client must at least send its body
# s until an idle connection is closed. Longer than load balancers keep theirs (Google's: 600 s): one that uses a
# connection that is just being closed answers 502. At CONNECTIONS, idle ones make room earlier.
KEEP_ALIVE = 620
CONNECTIONS = 4096  # maximum number of connections
MAX_LENGTH_DIGITS = 19  # maximum number of digits of a content-length header; int() refuses thousands of digits
NEVER = float("inf")


@dataclass
class Guard:
    """Limits of a server's connections, in seconds, and what its connections share.

    `on_closed` gets the reason when a limit closes a connection: headers, body, pipelining, room or full.
    """

    header_timeout: float = 10.0  # from the start of a connection or request to the end of its headers
    body_timeout: float = 20.0  # for a body, besides one second for each MIN_TRANSFER_RATE bytes
    # At the limit, a new connection replaces the longest idle one, or gets 503.
    max_connections: int = CONNECTIONS
    on_closed: Callable[[str], None] = lambda _: None
    # Connections without a request to answer, in the order in which they began to wait.
    idle: dict["GuardedProtocol", None] = field(default_factory=dict)
    looking: bool = False  # whether a call of `look` is scheduled

    def __call__(self, **server: Any) -> "GuardedProtocol":
        """The protocol of a new connection: `uvicorn.Config(http=guard)`."""
        return GuardedProtocol(self, **server)

    def begin(self, connection: "GuardedProtocol") -> None:
        """Registers a new connection. At `max_connections`, closes the one that has waited longest without a request,
        or refuses the new one if all others are busy."""
        self.idle[connection] = None
        if not self.looking:
            self.look(connection.loop, connection.connections)
        if len(connection.connections) > self.max_connections:
            oldest = next(iter(self.idle))
            if oldest is connection:
                connection.refuse("full", 503, f"{self.max_connections} connections are open and busy")
            else:
                oldest.drop("room")

    def look(self, loop: asyncio.AbstractEventLoop, connections: set[Any]) -> None:
        """Closes connections whose time is over. One timer for all is cheaper than one for each request."""
        period = min(self.header_timeout, self.body_timeout) / 4
        for connection in list(connections):
            connection.look(period)
        self.looking = bool(connections)
        if self.looking:
            loop.call_later(period, self.look, loop, connections)


class GuardedProtocol(HttpToolsProtocol):
    """One connection. Overrides only callbacks of asyncio, of the parser and of uvicorn's responses."""

    def __init__(self, guard: Guard, **server: Any) -> None:
        super().__init__(**server)
        self.guard = guard
        self.unanswered: deque[RequestResponseCycle] = deque()  # oldest first
        self.watching: dict[Callable[[], None], None] = {}  # called when the client disconnects
        self.refused = False  # if True, further bytes are ignored
        self.in_head = self.in_body = False
        self.around = 0  # bytes of headers, chunk headers and trailers that arrived since the last data of a body
        self.taken = 0  # bytes of the current body that have arrived
        self.deadline = self.loop.time() + guard.header_timeout  # for the end of the current head or body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.guard.begin(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.guard.idle.pop(self, None)
        self.leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if len(data) <= STEP:
            self.take(data)
            return
        view = memoryview(data)
        for start in range(0, len(data), STEP):
            self.take(view[start : start + STEP])

    def take(self, data: bytes | memoryview) -> None:
        if self.refused or self.transport.is_closing():
            return
        self.around += len(data)
        try:
            self.parse(data)
        except httptools.HttpParserError:
            if len(self.unanswered) > MAX_UNANSWERED:
                self.drop("pipelining")
            else:
                self.refuse("headers", 400, "Invalid HTTP request received.")
        else:
            if self.around > MAX_HEADER_BYTES:
                self.refuse("headers", 431, f"a request's headers may have at most {MAX_HEADER_BYTES} bytes")

    def parse(self, data: bytes | memoryview) -> None:
        """Parses bytes. Ignores the header Upgrade, as a server may (RFC 9110, 7.8).

        If a head contains Upgrade, the parser stops after it and would read the request's body as the next request. So
        a new parser gets the same head without Upgrade, and then the remaining bytes.
        """
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as asked:
                method, version = self.parser.get_method(), self.parser.get_http_version().encode()
                if method == b"CONNECT":
                    raise httptools.HttpParserError("CONNECT asks for a tunnel; this server has none") from None
                lines = [b"%s %s HTTP/%s" % (method, self.url, version)]
                lines += [b"%s: %s" % (name, value) for name, value in self.headers if name != b"upgrade"]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn sets it
                self.parser.feed_data(b"\r\n".join([*lines, b"", b""]))
                data = data[asked.args[0] :]

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None
        self.in_head = True
        self.deadline = self.loop.time() + self.guard.header_timeout

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # `parse` will feed the parser with the head again, without Upgrade
        if any(name == b"content-length" and len(value) > MAX_LENGTH_DIGITS for name, value in self.headers):
            raise httptools.HttpParserError(f"the content-length has more than {MAX_LENGTH_DIGITS} digits")
        super().on_headers_complete()  # raises an error if the request's target is invalid
        self.headers = []  # for trailers, which must not be treated as headers (RFC 9110, 6.5.1)
        self.guard.idle.pop(self, None)
        self.scope["extensions"] = {ANSWER: partial(send_whole, self.cycle), WATCH: self.watch}  # type: ignore[dict-item]
        self.unanswered.append(self.cycle)
        self.deadline = self.loop.time() + self.guard.body_timeout
        self.in_head, self.in_body, self.taken, self.around = False, True, 0, 0
        if len(self.unanswered) > MAX_UNANSWERED:
            raise httptools.HttpParserError(f"more than {MAX_UNANSWERED} requests are not answered")

    def on_body(self, body: bytes) -> None:
        self.taken += len(body)
        self.around = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self.in_body, self.around, self.deadline = False, 0, NEVER
        super().on_message_complete()
        # After a large body, uvicorn leaves reading paused, and would not notice that the client disconnects.
        if len(self.unanswered) == 1:
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        self.unanswered.popleft()
        super().on_response_complete()
        if not self.unanswered:
            self.guard.idle[self] = None
            if self.in_body:
                self.deadline = self.loop.time() + UNREAD_SECONDS

    def look(self, period: float) -> None:
        """Closes the connection if its client is too slow. Called every `period` seconds."""
        now = self.loop.time()
        if self.refused or self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.deadline += period  # the client waits for the server
        elif self.in_body and now > self.deadline + (self.taken / MIN_TRANSFER_RATE if self.unanswered else 0):
            self.refuse("body", 408, "the body did not arrive in time")
        elif not self.in_body and now > self.deadline:
            self.refuse("headers", 408, "the request did not arrive in time")

    def refuse(self, reason: str, status: int, why: str) -> None:
        """Ends the connection because of the request that is arriving, if need be after the answers to earlier ones.

        The client gets the error only if it waits for no other answer, and has sent something.
        """
        self.guard.on_closed(reason)
        self.guard.idle.pop(self, None)
        self.refused = True
        answered = self.in_body
        if self.in_body and self.unanswered:
            arriving = self.unanswered[-1]
            answered = arriving.response_started
            arriving.disconnected = True
            arriving.message_event.set()
            if len(self.unanswered) > 1:
                self.unanswered.pop()
                self.pipeline.popleft()  # uvicorn adds the newest request on the left
            else:
                self.unanswered.clear()
        if self.unanswered:
            self.unanswered[-1].keep_alive = False  # uvicorn closes the connection after its answer
            return
        if not answered and (self.in_head or self.in_body or status != 408):
            kind = {503: "Unavailable", 431: "TooLarge"}.get(status, "Validation")
            body = orjson.dumps({"error": why, "error_type": kind, "request_id": ""})
            head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n" % len(body)
            again = b"retry-after: 5\r\n" if status == 503 else b""
            self.transport.write(STATUS_LINE[status] + head + again + b"\r\n" + body)
        self.transport.close()

    def drop(self, reason: str) -> None:
        """Ends the connection at once, without the answers that it still waits for."""
        self.guard.on_closed(reason)
        self.guard.idle.pop(self, None)
        self.refused = True
        self.leave()
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # close() would wait until the client has read everything
        else:
            self.transport.close()

    def leave(self) -> None:
        """Tells the requests that their client has disconnected; uvicorn would only tell the newest."""
        self.pipeline.clear()
        for cycle in self.unanswered:
            cycle.disconnected = True
            cycle.message_event.set()
        self.unanswered.clear()
        for left in list(self.watching):
            left()
        self.watching.clear()

    def watch(self, left: Callable[[], None]) -> Callable[[], object]:
        """Calls `left` when the client disconnects, soon if it has; what it returns cancels this."""
        self.watching[left] = None
        if self.transport.is_closing():
            self.loop.call_soon(left)
        return partial(self.watching.pop, left, None)


def send_whole(cycle: RequestResponseCycle, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bool:
    """Sends a whole answer in one write. If the client must first read earlier answers, only returns False.

    uvicorn checks all headers by two regular expressions, which takes a tenth of the time of a cached request. This
    function skips the check, because the service itself makes these headers.
    """
    if cycle.disconnected or cycle.flow.write_paused:
        return cycle.disconnected
    cycle.response_started, cycle.waiting_for_100_continue = True, False
    lines = [STATUS_LINE[status]]
    for name, value in (*cycle.default_headers, *headers):
        lines += (name, b": ", value, b"\r\n")
    lines += (b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n", body)
    cycle.transport.write(b"".join(lines))
    cycle.response_complete = True
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
    return True
