"""Requests that both clients send, and how their answers are read. Independent of the HTTP library.

A method of the clients is written once, as a function that makes an `Answered` or a `Streamed` of its arguments. Most
need one request: a `Call`, which is an `Answered`.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar
from urllib.parse import quote

from ._reading import read
from ._retries import Repeat, retry_after
from ._version import CONTRACT, __version__
from .errors import IncompatibleServer, UnexpectedAnswer, api_error

if TYPE_CHECKING:
    from ._sending import Sender

T = TypeVar("T")
IdempotencyKey = str | bool
Answered = Callable[["Sender"], Coroutine[Any, Any, T]]  # the requests of a method that has one result
Streamed = Callable[["Sender"], AsyncGenerator[T, None]]  # the requests of a method that yields results


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


def check_status(status: int, headers: Mapping[str, str], content: bytes) -> None:
    """Raises ApiError, IncompatibleServer or UnexpectedAnswer unless the request succeeded."""
    check_contract(headers.get("x-isosim-contract", ""))
    if status >= 400:
        raise api_error(status, headers, content, retry_after(headers))
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


def answer(kind: type[T]) -> Callable[[Any], T]:
    """A function that converts JSON to `kind`."""
    return lambda value: read(kind, value)


def listed(kind: type[T], name: str) -> Callable[[Any], tuple[T, ...]]:
    """A function that converts an object with a list under this name to a tuple of `kind`."""
    whole: Any = tuple[kind, ...]  # type: ignore[valid-type]
    return lambda value: read(whole, value.get(name) if isinstance(value, dict) else value, name)


def nothing(_: Any) -> None:
    """Converts an answer that has no content."""


def segment(value: object) -> str:
    """A value percent-encoded as one segment of a path; the @ of `name@3` is kept."""
    return quote(str(value), safe="@")


def given(**values: Any) -> dict[str, Any]:
    """The values that are not None: what the caller does not ask for is not sent, because older servers refuse fields
    that they do not know."""
    return {name: value for name, value in values.items() if value is not None}


def many(items: Any, name: str, wanted: str = "strings") -> list[Any]:
    """`items` as a list. Raises TypeError for a path, and for a single string, because `list` would split the string
    into characters."""
    if isinstance(items, str | os.PathLike):
        raise TypeError(f"{name}: give a list of {wanted}, not {items!r:.80}; read the file first if it is a path")
    return list(items)


def keyed(key: IdempotencyKey) -> dict[str, Any]:
    """Arguments of `Call` for a request that makes a job. With a key, sending the request twice makes only one job."""
    if key is False:
        return {"repeat": Repeat.NEVER}
    return {"headers": {"idempotency-key": uuid.uuid4().hex if key is True else key}, "repeat": Repeat.SAFE}
