"""Connections that cannot be held for nothing: uvicorn's protocol, with an end to everything a client can draw out.

uvicorn limits how long an idle connection is kept, and nothing else: a client that sends a byte a second, headers
without end, or never reads its answer holds the connection and its memory for ever.
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

from service.api.middleware import CONNECTION

Reason = Literal["headers", "body", "reading", "room", "full"]

MAX_HEADER_BYTES = 64 * 1024  # of a request line with its headers; also of what stands around a body in chunks
MAX_UNREAD_BYTES = 20_000_000  # of a body that nobody wants any more, since the request was answered
UNREAD_SECONDS = 5.0  # that such a body may still take: cut off at once, its sender might not see the answer
MAX_AHEAD = 16  # requests that wait for the answer before theirs; what a client sends beyond them waits unparsed
STEP = 1024  # bytes parsed at a time: the parser cannot stop within them, and they may begin 57 requests
MAX_LENGTH_DIGITS = 19  # of a content-length: it has no more meaning, and int() refuses thousands of them
NEVER = float("inf")


@dataclass(frozen=True)
class ConnectionLimits:
    """Seconds and bytes a second. `on_closed` hears why a connection was closed."""

    header_timeout: float
    body_timeout: float
    min_transfer_rate: int
    keep_alive: float
    max_connections: int
    on_closed: Callable[[Reason], None] = lambda _: None


class HeldFlow(FlowControl):
    """Does not read on while `held`, whoever asks for it: a request under way does whenever it waits for its body."""

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
    """Requests that were sent ahead of an answer begin one at a time, each in a turn of the event loop of its own.

    A client that waits for its answers gets on before one that sends 8,000 requests at once, over any number of
    connections: 100 of them held a request up for 15 s when each began its next one in every turn.
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
    """One connection. It waits for headers, then for a body, then for us; a deadline goes with the first two.

    The deadline is looked at by one timer a connection that comes round a few times within it, and not by a timer a
    request: a request only writes down when it has to be there.

    Requests sent ahead are answered in order. uvicorn parses all that has arrived, 8,000 requests of 31 bytes in one
    read, and each of them takes 3 kB until it is answered. Here `MAX_AHEAD` are parsed, the rest of the read waits as
    bytes, and nothing more is read until answers have made room.
    """

    limits: ClassVar[ConnectionLimits]
    turns: ClassVar[Turns]
    waiting: ClassVar[dict["GuardedProtocol", None]]  # connections without a request to answer, the longest first

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = self._flow = HeldFlow(transport)
        self._unparsed = memoryview(b"")
        self._answering: RequestResponseCycle | None = None  # the oldest request; `cycle` is the newest
        self._on_left: Callable[[], None] | None = None
        self._answered = False  # while an answer has just ended: what begins now was sent ahead of it
        self._refusal: tuple[int, str] | None = None  # what ends the connection after the answers it is owed
        self._begun = self.loop.time()  # of what the client sends now
        self._deadline = self._begun + self.limits.header_timeout
        self._in_head = self._in_body = False
        self._taken = 0  # bytes of this body
        self._around = 0  # bytes since the last that belonged to a body
        self._unread: tuple[float, int] | None = None  # since when, and how much of an answer waited then
        self.waiting[self] = None
        self._round = min(self.limits.header_timeout, self.limits.body_timeout) / 4
        self._timer = self.loop.call_later(self._round, self._look)
        if len(self.connections) > self.limits.max_connections:
            self._make_room()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread = None  # what waits from now on is another answer's: the client has read nearly all before it

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self.waiting.pop(self, None)
        self._leave()  # uvicorn tells the newest request, which may not be the one under way
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unparsed = memoryview(bytes(self._unparsed) + data if self._unparsed else data)
        self._advance()

    def _advance(self) -> None:
        """Parses what has arrived, no further ahead of the answers than `MAX_AHEAD` requests and a step."""
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
                    self._refuse("headers", 431, f"a request's headers may have {MAX_HEADER_BYTES} bytes")
        if self._refusal is None:
            self._flow.release()

    def _parse(self, data: memoryview) -> None:
        """Ignores what asks for another protocol, as a server may (RFC 9110, 7.8).

        The parser cannot: it takes an upgrade for granted, drops the body and would read it as the next request. So
        a new one is told the same head without its Upgrade, and goes on with what follows. uvicorn would only warn.
        """
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as asked:
                if self.parser.get_method() == b"CONNECT":
                    raise httptools.HttpParserError("a tunnel is asked for, which is no request") from None
                head = self._head_without_upgrade()
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own
                self.parser.feed_data(head)
                data = data[asked.args[0] :]

    def _head_without_upgrade(self) -> bytes:
        """As it came: the parser takes neither folded lines nor control characters in what it has split up."""
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
            return  # a trailer: nothing of ours is sent in one, and it must not pass for a header (RFC 9110, 6.5.1)
        super().on_header(name, value)
        if len(value) > MAX_LENGTH_DIGITS and self.headers[-1][0] == b"content-length":
            raise httptools.HttpParserError("a content-length without end")

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # it comes again, without its Upgrade
        super().on_headers_complete()  # raises where the target is none: then there is no request
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
        """Sends a whole answer in one piece; False where that has to wait until the client has read what it was sent.

        The headers are of our own making. uvicorn looks through all of them by two regular expressions, for whatever
        an application might have put there: a tenth of a cached request.
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
        """In uvicorn's place, but for its timer of an idle connection: `_look` closes that."""
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
        """Between two requests, or once a body is answered before its end: it may hold nobody else up, nor last long.

        uvicorn's own timer forgets a client whose body ends after its answer.
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
            self.transport.abort()  # close() would wait for the client to read
        elif self.transport.is_closing():
            return
        elif self.flow.read_paused or (self._owes_an_answer() and not self._in_body):
            self._deadline += self._round  # it is we who do not read, or the client asks ahead of our answer
        elif self._in_body:
            unwanted = self.cycle.response_complete
            if now > self._deadline + (0 if unwanted else self._taken / self.limits.min_transfer_rate):
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
        """Whether an answer was the last that passed: of another request nothing has come."""
        return self.cycle is not None and not self._in_head

    def _is_left_unread(self, now: float) -> bool:
        """Whether the client reads its answer too slowly to wait for it."""
        waits = self.transport.get_write_buffer_size()
        if not waits:
            self._unread = None
            return False
        if self._unread is None:
            self._unread = now, waits
        since, waited = self._unread
        spent = now - since
        return spent > self.limits.body_timeout and waited - waits < self.limits.min_transfer_rate * spent

    def _make_room(self) -> None:
        """Closes the connection that has been without a request for longest, or this one."""
        oldest = next(iter(self.waiting))
        if oldest is not self:
            oldest._close("room")
            oldest.transport.close()
        else:
            self._refuse("full", 503, f"{self.limits.max_connections} connections are open and busy")

    def _close(self, reason: Reason) -> None:
        """Ends what the connection was doing."""
        self.limits.on_closed(reason)
        self.waiting.pop(self, None)
        self._deadline = NEVER
        self._unparsed = memoryview(b"")
        self._leave()

    def _leave(self) -> None:
        """The request under way is told that its caller has gone."""
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()
            if self._on_left is not None:
                self._on_left()

    def _tell_of_leaving(self, left: Callable[[], None] | None) -> None:
        """Calls `left` when the caller of the request under way leaves; None: does not, any more."""
        self._on_left = left
        if left is not None and self._answering is not None and self._answering.disconnected:
            left()

    def _refuse(self, reason: Reason, status: int, why: str) -> None:
        """Says why where nothing was answered yet; a client that has sent nothing at all is left without a word."""
        self.limits.on_closed(reason)
        if status == 408 and self._around == 0 and not self._in_body:
            self.transport.close()
        else:
            self._end(status, why)

    def _end(self, status: int, why: str) -> None:
        """Refuses the request that is arriving, once those before it are answered, and with it the connection."""
        self.waiting.pop(self, None)
        self._deadline = NEVER
        self._unparsed = memoryview(b"")
        self._flow.hold()
        self._refusal = status, why
        if self._in_body and self.pipeline:
            self.pipeline.popleft()  # the newest: its body will not be complete
        elif self._in_body and self._owes_an_answer():
            started = self._answering is not None and self._answering.response_started
            self._leave()
            self._say_why(started)
            return
        if not self._owes_an_answer():
            self._say_why(self._in_body)

    def _say_why(self, answered: bool = False) -> None:
        """`answered`: the request that is refused has an answer already, or the beginning of one."""
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
    """A server's own protocol class, for `uvicorn.Config(http=…)`."""
    members: dict[str, Any] = {"limits": limits, "turns": Turns(), "waiting": {}}
    return type("GuardedProtocol", (GuardedProtocol,), members)
