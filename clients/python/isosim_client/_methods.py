"""How the methods of both clients are declared, each once.

Most methods are one request, which `request` makes of a function's signature: arguments in its path, the others in the
query (GET and DELETE) or the body (POST and PUT). What is not given is not sent. The function's body is empty.
"""

from __future__ import annotations

import functools
import inspect
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from string import Formatter
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, get_type_hints, overload
from urllib.parse import quote

from ._answers import Domain, Job, Match
from ._call import Answered, Body, Call, Sender, Streamed
from ._reading import read
from ._retries import Repeat
from .errors import Forbidden

if TYPE_CHECKING:
    from ._clients import AsyncClient, Client

P = ParamSpec("P")
T = TypeVar("T")
B = TypeVar("B")
A = TypeVar("A")
IdempotencyKey = str | bool
Given = dict[str, Any]  # arguments


class Method(Generic[P, B, A]):
    """A method of both clients. `B`: what `Client` returns; `A`: what `AsyncClient` returns."""

    def __init__(self, shown: Callable[..., Any], requests: Callable[P, Any], run: str) -> None:
        self.shown, self.requests, self.run = shown, requests, run

    @overload
    def __get__(self, client: None, owner: type) -> Callable[P, Any]: ...
    @overload
    def __get__(self, client: Client, owner: type) -> Callable[P, B]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: type) -> Callable[P, A]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        if client is None:
            return self.shown
        run = getattr(client, self.run)

        @functools.wraps(self.shown)
        def call(*args: Any, **kwargs: Any) -> Any:
            return run(self.requests(*args, **kwargs))

        return call


def answered(build: Callable[P, Answered[T]]) -> Method[P, T, Coroutine[Any, Any, T]]:
    """A method that a function makes of several requests."""
    return Method(build, build, "_answer")


def streamed(build: Callable[P, Streamed[T]]) -> Method[P, Iterator[T], AsyncIterator[T]]:
    """A method that yields results."""
    return Method(build, build, "_stream")


def request(
    method: str,
    path: str,
    *,
    prepare: Callable[[Given], Body | None] = lambda given: None,
    under: str | None = None,
    parse: Callable[[Any], Any] | None = None,
    repeat: Repeat = Repeat.SAFE,
    starts: bool = False,
) -> Callable[[Callable[P, T]], Method[P, T, Coroutine[Any, Any, T]]]:
    """A method of one request.

    Args:
        prepare: changes arguments that are not sent as they are; takes out those of a streamed body, and returns it.
        under: the field of the answer that is returned.
        parse: converts the answer; by default, it is read as the type that the function is declared to return.
        starts: whether the change of a domain starts from a revision. Unless the caller has `seen` the domain, it is
            read before, if the API key may read it.
    """

    def declare(shown: Callable[P, T]) -> Method[P, T, Coroutine[Any, Any, T]]:
        signature, names = inspect.signature(shown), [name for _, name, _, _ in Formatter().parse(path) if name]

        def requests(*args: P.args, **kwargs: P.kwargs) -> Answered[T]:
            given = {
                name: value for name, value in signature.bind(*args, **kwargs).arguments.items() if value is not None
            }
            place = path.format_map({name: segment(given.pop(name)) for name in names})
            seen, headers, certain = given.pop("seen", None), {}, repeat
            if "idempotency_key" in signature.parameters:
                key = given.pop("idempotency_key", True)
                certain = repeat if key else Repeat.NEVER
                headers = {"idempotency-key": uuid.uuid4().hex if key is True else key} if key else {}
            upload = prepare(given)
            sent: Given = {name: list(value) if isinstance(value, Iterable) and not isinstance(value, str) else value
                    for name, value in given.items()}  # fmt: skip
            in_query = upload is not None or method in ("GET", "DELETE")

            def call(seen: Domain | None) -> Call[T]:
                start = {} if seen is None or seen.revision is None else {"revision": seen.revision}
                return Call(
                    method=method,
                    path=place,
                    query=sent | start if in_query else {},
                    body=None if in_query else sent | start or None,
                    upload=upload,
                    headers=headers,
                    # If it starts from a revision, a server that has already made the change reports success.
                    repeat=Repeat.SAFE if start and certain is Repeat.IF_REFUSED else certain,
                    parse=parse or functools.partial(answer_of, shown, under),
                )

            async def looked(sender: Sender) -> T:
                found = None
                with suppress(Forbidden):
                    found = await sender.send(state_of(Domain, "/".join(place.split("/")[:2])))
                return await sender.send(call(found))

            return looked if starts and seen is None else call(seen)

        return Method(shown, requests, "_answer")

    return declare


def download(path: str) -> Callable[[Callable[P, Iterator[bytes]]], Method[P, Iterator[bytes], AsyncIterator[bytes]]]:
    """A method of one GET request that yields the answer's content in pieces."""

    def declare(shown: Callable[P, Iterator[bytes]]) -> Method[P, Iterator[bytes], AsyncIterator[bytes]]:
        made = request("GET", path)(shown).requests

        def requests(*args: P.args, **kwargs: P.kwargs) -> Streamed[bytes]:
            call = made(*args, **kwargs)
            return lambda sender: sender.pieces(call)

        return Method(shown, requests, "_stream")

    return declare


def answer_of(shown: Callable[..., Any], under: str | None, value: Any) -> Any:
    """The answer's JSON as the type that a function is declared to return."""
    hint = get_type_hints(shown)["return"]
    if hint is type(None):
        return None
    return read(hint, value.get(under) if under and isinstance(value, dict) else value, under or "")


def state_of(kind: type[T], path: str) -> Call[T]:
    """Reads the state of a job or a domain."""
    return Call(method="GET", path=path, parse=functools.partial(read, kind))


def segment(value: object) -> str:
    """A value percent-encoded as one segment of a path; the @ of `name@3` is kept. A job stands for its id."""
    return quote(str(value.id if isinstance(value, Job | Match) else value), safe="@")
