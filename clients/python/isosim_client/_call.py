"""Requests of both clients and how to read their answers, independent of the HTTP library."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from ._reading import read
from ._retries import Repeat, retry_after
from ._upload import Upload
from ._version import CONTRACT, __version__
from .errors import IncompatibleServer, IsosimError, UnexpectedAnswer, api_error

T = TypeVar("T")

UNKNOWN = {404, 405, 415, 422}  # statuses for a route, a body or a field that the server does not know

IdempotencyKey = str | bool
FROM_FILE = {  # how to read an argument from a file
    "labels": "for rows of text,text,label read it first: [(a, b, float(label)) for a, b, label in "
    'csv.reader(open(path, newline=""))], with delimiter="\\t" for tabs, and label, a, b where '
    "the label comes first; or give the file to the command line: isosim label FILE --domain NAME",
}


@dataclass(frozen=True, kw_only=True)
class Call(Generic[T]):
    """One request to one route; its answer is a T."""

    method: str
    path: str  # below the base URL, quoted
    parse: Callable[[Any], T]  # converts the answer's JSON; gets None if there is no content
    query: Mapping[str, str | int | float] = field(default_factory=dict)
    body: Any = None  # JSON
    upload: Upload | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    repeat: Repeat = Repeat.SAFE
    rescue: Callable[[IsosimError], T] | None = None  # converts some errors to an answer; raises the others
    then: Callable[[Any], Call[T]] | None = None  # makes the next call from this one's answer

    def repeatable(self) -> Repeat:
        """Whether the request may be sent again now: never if its source is an iterator that was read partly."""
        return Repeat.NEVER if self.upload is not None and self.upload.spent else self.repeat

    def read(self, status: int, headers: Mapping[str, str], content: bytes) -> T:
        """The parsed answer. Raises ApiError for an error status, UnexpectedAnswer for an answer not from isosim."""
        check_status(status, headers, content)
        try:
            value = json.loads(content) if content else None
        except ValueError:
            raise UnexpectedAnswer(f"{self.method} {self.path}: the answer is no JSON: {content[:80]!r}") from None
        return self.parse(value)


def check_status(status: int, headers: Mapping[str, str], content: bytes) -> None:
    """Raises ApiError, IncompatibleServer or UnexpectedAnswer unless the request succeeded."""
    older = check_contract(headers.get("x-isosim-contract"))
    if status >= 400:
        error = api_error(status, headers, content, retry_after(headers))
        if older and status in UNKNOWN:
            error.args = (f"{error}; this client may ask for more than the server has: {older}",)
        raise error
    if status >= 300:
        raise UnexpectedAnswer(f"status {status} to {headers.get('location')}: is the base URL the server's own?")


def check_contract(contract: str | None) -> str | None:
    """A sentence with both versions if the server's contract is older than this client's; otherwise None.

    Servers up to 0.1.0, and proxies, send no contract; they are not checked.

    Raises:
        IncompatibleServer: the major version differs, so names may have other meanings.
    """
    stated = re.fullmatch(r"([0-9]{1,6})\.([0-9]{1,6})", contract or "")
    if stated is None:
        return None
    major, minor = map(int, stated.groups())
    our_major, our_minor = map(int, CONTRACT.split("."))
    words = f"the server speaks contract {contract}, isosim-client {__version__} speaks {CONTRACT}"
    if major != our_major:
        which = "a newer" if major > our_major else "an older"
        raise IncompatibleServer(f"{words}; install {which} isosim-client, one for contract {major}")
    return words if minor < our_minor else None


def answer(kind: type[T]) -> Callable[[Any], T]:
    """Reads JSON as `kind`."""
    return lambda value: read(kind, value)


def nothing(_: Any) -> None:
    """Reads an answer without content."""


def segment(value: object) -> str:
    """One segment of a path; `name@3` stays readable."""
    return quote(str(value), safe="@")


def many(texts: Any, name: str) -> list[Any]:
    """Raises TypeError for a path, and for one string, which would otherwise pass as a list of its characters."""
    if isinstance(texts, os.PathLike):
        raise TypeError(f"{name}: give a list, not a path; {FROM_FILE.get(name, 'read the file first')}")
    if isinstance(texts, str):
        wanted = "labelled pairs, [(text, text, label), …]" if name == "labels" else "strings"
        hint = f"; {FROM_FILE[name]}" if name in FROM_FILE else ""
        raise TypeError(f"{name}: give a list of {wanted}, not one string{hint}")
    return list(texts)


def keyed(key: IdempotencyKey) -> dict[str, Any]:
    """Headers and repeatability of a request that makes a job. With a key, repeated requests make only one job."""
    if key is False:
        return {"repeat": Repeat.NEVER}
    return {"headers": {"idempotency-key": uuid.uuid4().hex if key is True else key}, "repeat": Repeat.SAFE}
