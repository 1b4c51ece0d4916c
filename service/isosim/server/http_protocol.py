"""uvicorn's HTTP protocol with deadlines, so that slow clients cannot hold connections forever.

uvicorn itself only limits idle time. A client could hold a connection and its memory forever: by sending one byte a
second, by sending endless headers, or by never reading its answer.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import httptools
import orjson
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from isosim.api.middleware import CONNECTION

Reason = Literal["headers", "body", "reading", "room", "full"]

# Maximum size of request line and headers together. In a chunked body, the same maximum applies to the chunk headers
# between two pieces of data, and to the trailers.
MAX_HEADER_BYTES = 64 * 1024
MAX_UNREAD_BYTES = 20_000_000  # maximum size of a body that continues to arrive after its request was answered
# A body may continue to arrive for this many seconds after its request was answered. If the connection were closed at
# once, the client might not read the answer.
UNREAD_SECONDS = 5.0
MAX_AHEAD = 16  # maximum number of pipelined requests that are parsed; later requests wait as bytes
# Number of bytes that the parser gets in one call. They may contain 57 small requests, which are all parsed. So the
# number of parsed requests may exceed MAX_AHEAD.
STEP = 1024
MAX_LENGTH_DIGITS = 19  # maximum number of digits of a content-length header; int() refuses thousands of digits
NEVER = float("inf")
MIN_TRANSFER_RATE = 8_000  # bytes/s at which a client must at least send its body and read its answer


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of connections, in seconds. `on_closed` gets the reason when a limit closes a connection."""

    header_timeout: float
    body_timeout: float
    keep_alive: float
    max_connections: int
    on_closed: Callable[[Reason], None] = lambda _: None


class HeldFlow(FlowControl):
    """Flow control that reads nothing between `hold` and `release`. In this time it ignores `resume_reading`, which
    uvicorn calls whenever a request waits for its body."""

    held = False

    def resume_reading(self) -> None:
        if not self.held:
            super().resume_reading()

    def hold(self) -> None:
        self.held = True
        self.pause_reading()

    def release(self) -> None:
        if self.held:
            self.held = False
            self.resume_reading()


class Turns:
    """Starts the pipelined requests of all connections: one request in each iteration of the event loop.

    Requests of other clients are served in between. Without this class, 100 connections that sent thousands of requests
    delayed other clients by 15 s.
    """

    def __init__(self) -> None:
        self._starts: deque[Callable[[], None]] = deque()

    def wait(self, loop: asyncio.AbstractEventLoop, start: Callable[[], None]) -> None:
        self._starts.append(start)
        if len(self._starts) == 1:
            loop.call_soon(self._begin, loop)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._starts[0]()
        self._starts.popleft()
        if self._starts:
            loop.call_soon(self._begin, loop)


class GuardedProtocol(HttpToolsProtocol):
    """One connection. Headers and body must each arrive before a deadline.

    One periodic timer per connection compares the clock with `_deadline`. Moving this deadline is cheaper than
    starting a timer for each request.

    Pipelined requests are answered in order. This class parses about `MAX_AHEAD` requests, keeps the rest as bytes, and
    reads no more until some requests are answered. uvicorn would parse everything: one read may contain 8,000 requests
    of 31 bytes. Each of them takes 3 kB of memory until it is answered.
    """

    limits: ClassVar[ConnectionLimits]
    turns: ClassVar[Turns]
    # Connections without a request to answer, in the order in which they began to wait.
    waiting: ClassVar[dict["GuardedProtocol", None]]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = self._flow = HeldFlow(transport)
        self._unparsed = memoryview(b"")
        self._answering: RequestResponseCycle | None = None  # the running (oldest) request; `cycle` is the newest
        self._on_left: Callable[[], None] | None = None
        # True while `on_response_complete` runs. All requests started there are pipelined, so `_start_asgi_task` puts
        # them into `turns`.
        self._answered = False
        self._refusal: tuple[int, str] | None = None  # (status, reason), sent after the pending answers
        self._begun = self.loop.time()  # time at which the client began to send the current head or body
        self._deadline = self._begun + self.limits.header_timeout
        self._in_head = self._in_body = False
        self._taken = 0  # bytes of the current body that have arrived
        self._around = 0  # bytes of headers, chunk headers and trailers that arrived since the last data of a body
        # (time, bytes in the write buffer) when `_is_left_unread` first found unread bytes; before that, None
        self._unread: tuple[float, int] | None = None
        self.waiting[self] = None
        self._round = min(self.limits.header_timeout, self.limits.body_timeout) / 4
        self._timer = self.loop.call_later(self._round, self._look)
        if len(self.connections) > self.limits.max_connections:
            self._make_room()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread = None  # the client has read nearly everything, so its speed is measured anew

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self.waiting.pop(self, None)
        # uvicorn tells only the newest request that the client has disconnected. `_leave` tells the running request.
        self._leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unparsed = memoryview(bytes(self._unparsed) + data if self._unparsed else data)
        self._advance()

    def _advance(self) -> None:
        """Parses received bytes, STEP at a time. Stops when at least `MAX_AHEAD` requests wait."""
        while self._unparsed and not self.transport.is_closing():
            if len(self.pipeline) >= MAX_AHEAD:
                self._flow.hold()
                return
            step, self._unparsed = self._unparsed[:STEP], self._unparsed[STEP:]
            self._around += len(step)
            try:
                self._parse(step)
            except httptools.HttpParserError:
                self.logger.warning("Invalid HTTP request received.")
                self._end(400, "Invalid HTTP request received.")
            else:
                if self._around > MAX_HEADER_BYTES:
                    self._refuse("headers", 431, f"a request's headers may have at most {MAX_HEADER_BYTES} bytes")
        if self._refusal is None:
            self._flow.release()

    def _parse(self, data: memoryview) -> None:
        """Parses bytes. Ignores the header Upgrade, as a server may (RFC 9110, 7.8).

        If a head contains Upgrade, the parser stops after it and would read the request's body as the next request. So
        a new parser gets the same head without Upgrade, and then the remaining bytes.
        """
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as asked:
                if self.parser.get_method() == b"CONNECT":
                    raise httptools.HttpParserError("CONNECT asks for a tunnel; this server has none") from None
                head = self._head_without_upgrade()
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn sets it
                self.parser.feed_data(head)
                data = data[asked.args[0] :]

    def _head_without_upgrade(self) -> bytes:
        """The received head, rebuilt without its Upgrade header; the parser has already refused malformed lines."""
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        lines += [b"%s: %s" % (name, value) for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._begun = self.loop.time()
        self._deadline = self._begun + self.limits.header_timeout

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_body:
            return  # a trailer, which must not be treated as a header (RFC 9110, 6.5.1)
        super().on_header(name, value)
        if len(value) > MAX_LENGTH_DIGITS and self.headers[-1][0] == b"content-length":
            raise httptools.HttpParserError(f"the content-length has more than {MAX_LENGTH_DIGITS} digits")

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # `_parse` will feed the parser with the head again, without Upgrade
        super().on_headers_complete()  # raises an error if the request's target is invalid
        self.waiting.pop(self, None)
        self._begun = self.loop.time()
        self._deadline = self._begun + self.limits.body_timeout
        self._in_head, self._in_body, self._taken, self._around = False, True, 0, 0

    def on_body(self, body: bytes) -> None:
        self._taken += len(body)
        self._around = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._in_body, self._around, self._deadline = False, 0, NEVER
        super().on_message_complete()
        # After a large body, uvicorn leaves reading paused, and would not notice that the client disconnects.
        self._flow.resume_reading()
        self._rest()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        own: dict[object, object] = {"answer": partial(self._answer_at_once, cycle), "on_left": self._tell_of_leaving}
        cycle.scope["extensions"] = {CONNECTION: own}
        start = super()._start_asgi_task
        if self._answered:
            self.turns.wait(self.loop, lambda: None if self.transport.is_closing() else start(cycle, app))
        else:
            start(cycle, app)

    def _answer_at_once(
        self, cycle: RequestResponseCycle, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes
    ) -> bool:
        """Sends a whole answer in one write. If the client must first read earlier answers, only returns False.

        uvicorn checks all headers by two regular expressions, which takes a tenth of the time of a cached request. This
        method skips the check, because the service itself makes these headers.
        """
        if self._flow.write_paused and not cycle.disconnected:
            return False
        if not cycle.disconnected:
            cycle.response_started, cycle.waiting_for_100_continue = True, False
            lines = [STATUS_LINE[status]]
            for name, value in (*cycle.default_headers, *headers):
                lines += (name, b": ", value, b"\r\n")
            lines += (b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n", body)
            self.transport.write(b"".join(lines))
            cycle.response_complete = True
            cycle.message_event.set()
            if not cycle.keep_alive:
                self.transport.close()
            cycle.on_response()
        return True

    def on_response_complete(self) -> None:
        """Does the same as uvicorn's method, but sets no timer for idle connections, because `_look` closes them."""
        self._answered = True
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self._flow.resume_reading()
            if self.pipeline:
                self._start_asgi_task(*self.pipeline.pop())
        if self._refusal is None:
            self._advance()
            self._rest()
        elif not self._owes_an_answer():
            self._say_why()
        self._answered = False

    def _owes_an_answer(self) -> bool:
        return bool(self.pipeline) or (self._answering is not None and not self._answering.response_complete)

    def _rest(self) -> None:
        """If no answer is pending, marks the connection as waiting and sets the deadline for the next request.

        If the body of the answered request is still arriving, the deadline is for this body.
        """
        if not self._owes_an_answer():
            self.waiting[self] = None
            if not self._in_head:
                self._deadline = self.loop.time() + (UNREAD_SECONDS if self._in_body else self.limits.keep_alive)

    def _look(self) -> None:
        self._timer = self.loop.call_later(self._round, self._look)
        now = self.loop.time()
        if self._is_left_unread(now):
            self._close("reading")
            self.transport.abort()  # close() would wait until the client has read everything
        elif self.transport.is_closing():
            return
        elif self.flow.read_paused or (self._owes_an_answer() and not self._in_body):
            # The client waits for the server, which has paused reading or has not answered yet.
            self._deadline += self._round
        elif self._in_body:
            unwanted = self.cycle.response_complete
            if now > self._deadline + (0 if unwanted else self._taken / MIN_TRANSFER_RATE):
                self._refuse("body", 408, "the body did not arrive in time")
            elif unwanted and self._taken > MAX_UNREAD_BYTES:
                self._close("body")
                self.transport.abort()
        elif now > self._deadline and self._is_idle:
            self.transport.close()
        elif now > self._deadline:
            self._refuse("headers", 408, "the request did not arrive in time")

    @property
    def _is_idle(self) -> bool:
        """Whether a request was answered and no byte of the next has arrived."""
        return self.cycle is not None and not self._in_head

    def _is_left_unread(self, now: float) -> bool:
        """Whether the client has read more slowly than MIN_TRANSFER_RATE for longer than `body_timeout`."""
        waits = self.transport.get_write_buffer_size()
        if not waits:
            self._unread = None
            return False
        if self._unread is None:
            self._unread = now, waits
        since, waited = self._unread
        spent = now - since
        return spent > self.limits.body_timeout and waited - waits < MIN_TRANSFER_RATE * spent

    def _make_room(self) -> None:
        """Closes the connection that has waited longest without a request. If all others are busy, refuses this one."""
        oldest = next(iter(self.waiting))
        if oldest is not self:
            oldest._close("room")
            oldest.transport.close()
        else:
            self._refuse("full", 503, f"{self.limits.max_connections} connections are open and busy")

    def _close(self, reason: Reason) -> None:
        """Counts the reason, drops unparsed bytes and cancels the running request. The caller closes the transport."""
        self.limits.on_closed(reason)
        self.waiting.pop(self, None)
        self._deadline = NEVER
        self._unparsed = memoryview(b"")
        self._leave()

    def _leave(self) -> None:
        """Tells the running request that the client has disconnected."""
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()
            if self._on_left is not None:
                self._on_left()

    def _tell_of_leaving(self, left: Callable[[], None] | None) -> None:
        """Registers `left`, which is called when the client of the running request disconnects; None unregisters it."""
        self._on_left = left
        if left is not None and self._answering is not None and self._answering.disconnected:
            left()

    def _refuse(self, reason: Reason, status: int, why: str) -> None:
        """Answers with an error and closes the connection. A client that timed out before it sent a byte gets no
        answer."""
        self.limits.on_closed(reason)
        if status == 408 and self._around == 0 and not self._in_body:
            self.transport.close()
        else:
            self._end(status, why)

    def _end(self, status: int, why: str) -> None:
        """Refuses the request that is arriving. Closes the connection when earlier requests are answered."""
        self.waiting.pop(self, None)
        self._deadline = NEVER
        self._unparsed = memoryview(b"")
        self._flow.hold()
        self._refusal = status, why
        if self._in_body and self.pipeline:
            # Drops the newest request, because its body is incomplete. uvicorn adds the newest request on the left.
            self.pipeline.popleft()
        elif self._in_body and self._owes_an_answer():
            started = self._answering is not None and self._answering.response_started
            self._leave()
            self._say_why(started)
            return
        if not self._owes_an_answer():
            self._say_why(self._in_body)

    def _say_why(self, answered: bool = False) -> None:
        """Sends the refusal, unless the client already got at least part of an answer. Then closes the connection."""
        if self._refusal is not None and not answered and not self.transport.is_closing():
            self._answer(*self._refusal)
        self.transport.close()

    def _answer(self, status: int, why: str) -> None:
        kind = {503: "Unavailable", 431: "TooLarge"}.get(status, "Validation")
        body = orjson.dumps({"error": why, "error_type": kind, "request_id": ""})
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n" % len(body)
        again = b"retry-after: 5\r\n" if status == 503 else b""
        self.transport.write(STATUS_LINE[status] + head + again + b"\r\n" + body)


def guarded(limits: ConnectionLimits) -> type[GuardedProtocol]:
    """A protocol class with these limits, for `uvicorn.Config(http=…)`. Each server needs its own class, because the
    class holds the server's waiting connections."""
    members: dict[str, Any] = {"limits": limits, "turns": Turns(), "waiting": {}}
    return type("GuardedProtocol", (GuardedProtocol,), members)
