"""Requests that both clients send, when they are sent again, and how answers are read. Independent of the HTTP library.

Written once, as coroutines: what they await blocks in `Client`, and suspends in `AsyncClient`.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from ._reading import read
from ._retries import Repeat, Retries, may_heal, pause_after, retry_after
from ._version import CONTRACT, __version__
from .errors import ERROR_TYPES, ApiError, IncompatibleServer, IsosimError, UnexpectedAnswer

T = TypeVar("T")
Response = tuple[int, Mapping[str, str], AsyncIterator[bytes]]  # status, headers, pieces of the content
QUOTED = 200  # maximum number of characters quoted from an unknown answer; enough to recognize a proxy's page


class Body(Protocol):
    """A body that is generated while it is sent."""

    content_type: str

    @property
    def spent(self) -> bool:
        """Whether the body cannot be sent again."""

    def chunks(self) -> Iterator[bytes]:
        """Yields the body from its beginning."""


@dataclass(frozen=True, kw_only=True)
class Call(Generic[T]):
    """One request to one route. Its answer is converted to T."""

    method: str
    path: str  # relative to the base URL, percent-encoded
    parse: Callable[[Any], T]  # converts the answer's JSON; gets None if there is no content
    query: Mapping[str, str | int | float] = field(default_factory=dict)
    body: Any = None  # value that is sent as JSON
    upload: Body | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    repeat: Repeat = Repeat.SAFE

    async def __call__(self, sender: Sender) -> T:
        return await sender.send(self)

    def repeatable(self) -> Repeat:
        """Whether the request may be sent again. NEVER if the iterator of its upload was already read."""
        return Repeat.NEVER if self.upload is not None and self.upload.spent else self.repeat

    def read(self, status: int, headers: Mapping[str, str], content: bytes) -> T:
        """The parsed answer. Raises ApiError for an error status, UnexpectedAnswer if the answer is not from isosim."""
        check_status(status, headers, content)
        try:
            value = json.loads(content) if content else None
        except ValueError:
            raise UnexpectedAnswer(f"{self.method} {self.path}: the answer is not JSON: {content[:80]!r}") from None
        return self.parse(value)


class Connections(Protocol):
    """The part of a client that blocks or suspends."""

    def open(self, call: Call[Any], timeout: float) -> AbstractAsyncContextManager[Response]: ...

    async def sleep(self, seconds: float) -> None: ...


class Sender:
    """Sends the requests of a client. `timeout`: seconds without data from the server, after which a request fails."""

    def __init__(self, connections: Connections, timeout: float, retries: Retries) -> None:
        self.connections, self.timeout, self.retries = connections, timeout, retries

    async def send(self, call: Call[T], within: float = float("inf")) -> T:
        """The parsed answer, after retries. No attempt begins or waits beyond `within` seconds."""
        failed, clock = 0, self.retries.clock
        end = clock() + min(self.retries.budget, within)
        while True:
            left = end - clock() if failed else within
            try:
                async with self.connections.open(call, max(min(self.timeout, left), 0.001)) as (
                    status,
                    headers,
                    pieces,
                ):
                    content = b"".join([piece async for piece in pieces])
                return call.read(status, headers, content)
            except IsosimError as error:
                pause = pause_after(error, self.retries, failed)
                if failed >= self.retries.times or not may_heal(error, call.repeatable()) or clock() + pause >= end:
                    raise
            failed += 1
            await self.connections.sleep(pause)

    async def pieces(self, call: Call[Any]) -> AsyncGenerator[bytes, None]:
        """The answer's content in pieces, as it arrives. The request is sent once."""
        async with self.connections.open(call, self.timeout) as (status, headers, pieces):
            if status != 200:
                check_status(status, headers, b"".join([piece async for piece in pieces]))
            async for piece in pieces:
                yield piece


Answered = Callable[[Sender], Coroutine[Any, Any, T]]  # the requests of a method that has one result
Streamed = Callable[[Sender], AsyncGenerator[T, None]]  # the requests of a method that yields results


def check_status(status: int, headers: Mapping[str, str], content: bytes) -> None:
    """Raises ApiError, IncompatibleServer or UnexpectedAnswer unless the request succeeded."""
    check_contract(headers.get("x-isosim-contract", ""))
    if status >= 400:
        raise api_error(status, headers, content)
    if status >= 300:
        raise UnexpectedAnswer(
            f"redirected (status {status}) to {headers.get('location')}; give the server's own address as base_url"
        )


def check_contract(contract: str) -> None:
    """Raises IncompatibleServer if the major versions of the server's contract and of this client's differ, so that
    fields may have other meanings. Answers of proxies have none."""
    stated = re.fullmatch(r"([0-9]{1,6})\.[0-9]{1,6}", contract)
    if stated is not None and stated[1] != CONTRACT.partition(".")[0]:
        raise IncompatibleServer(
            f"the server speaks contract {contract}, isosim-client {__version__} speaks {CONTRACT}; install the "
            f"isosim-client for contract {stated[1]}"
        )


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """The body of an error."""

    error: str
    error_type: str = ""
    request_id: str | None = None
    remedy: dict[str, Any] | None = None


def api_error(status: int, headers: Mapping[str, str], content: bytes) -> ApiError:
    """The error for an answer. If the answer is not isosim's, like a proxy's page, the message quotes it."""
    try:
        said = read(Refusal, json.loads(content))
    except (ValueError, UnexpectedAnswer):
        quoted = content.decode(errors="replace").strip()[:QUOTED]
        said = Refusal(error=f"status {status}" + (f": {quoted}" if quoted else ""))
    return ERROR_TYPES.get(said.error_type, ApiError)(
        said.error,
        status=status,
        error_type=said.error_type or None,
        request_id=said.request_id or headers.get("x-request-id"),
        retry_after=retry_after(headers),
        should_retry=headers.get("x-should-retry", "").lower() != "false",
        remedy=said.remedy if said.remedy and {"action", "arguments", "text"} <= said.remedy.keys() else None,
    )
