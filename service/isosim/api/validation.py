"""Parses JSON bodies at bounded cost, and words pydantic's errors with places as a person writes them."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_args

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.routing import BaseRoute

from isosim.api.bodies import MOST_ENTRIES, Own
from isosim.errors import InvalidInput, TokenizerFailure
from isosim.wording import SHOWN, nearest, place

NAMED = 3  # maximum number of wrong places that a message names
MOST_UNKNOWN = 16  # maximum number of unknown names or faults that are looked at; a request with more is refused
# Maximum number of names in a JSON body; pydantic takes 12 ms to refuse that many unknown ones.
MOST_NAMES = 16_384
# Maximum number of texts in a JSON body, names included, and of values (commas). Pydantic copies a list into each error
# about it; for 500,000 texts that took 170 ms.
MOST_TEXTS, MOST_VALUES = 2 * MOST_ENTRIES, 4 * MOST_ENTRIES

Body = TypeVar("Body")
Detail = Mapping[str, Any]  # one entry of pydantic's `errors()`

# What else a JSON body may have, at most how many, and the characters outside of texts that are counted for it.
PARTS = (
    ("values", MOST_VALUES, [b","]),
    ("names", MOST_NAMES, [b":"]),
    ("lists and objects", MOST_ENTRIES, [b"[", b"{"]),
)


def parse_json(adapter: TypeAdapter[Body], content: bytes) -> Body:
    """Parses and validates a JSON body. All routes with large JSON bodies parse them here.

    The work is bounded by the number of bytes: a body has few lists, objects and names, and pydantic's errors are only
    looked at if they are few.

    Raises:
        InvalidInput: see `check_parts` and `describe`.
    """
    if len(content) > MOST_ENTRIES:
        check_parts(content)
    try:
        return adapter.validator.validate_json(content)  # type: ignore[no-any-return]
    except ValidationError as error:
        if error.error_count() > MOST_UNKNOWN:
            raise too_many(error.error_count(), "unknown or wrong fields") from None
        details = error.errors(include_url=False, include_input=False)
        raise describe(details, list(fields_of(adapter._type))) from None  # pydantic has no public name for the type


def check_parts(content: bytes) -> None:
    """Raises InvalidInput if a JSON body has more than MOST_TEXTS texts or more parts than PARTS says."""
    plain = content.replace(b"\\\\", b"").replace(b'\\"', b"")  # now no text holds a quotation mark
    if plain.count(b'"') > 2 * MOST_TEXTS:
        raise too_long(MOST_TEXTS, "texts")
    outside = b"".join(plain.split(b'"')[::2])  # of texts, which may hold the characters that are counted
    for what, most, ends in PARTS:
        if sum(outside.count(end) for end in ends) > most:
            raise too_long(most, what)


def too_long(most: int, what: str) -> InvalidInput:
    return InvalidInput(f"the body has more than {most:,} {what}; send fewer entries at a time")


def fields_of(annotation: Any) -> Iterator[str]:
    """Names of the fields of our own bodies in an annotation; a field that several of them have comes several times."""
    if isinstance(annotation, type) and issubclass(annotation, Own):
        yield from (field.alias or name for name, field in annotation.model_fields.items())
    for part in get_args(annotation):
        yield from fields_of(part)


def refused(error: RequestValidationError, route: BaseRoute | None) -> InvalidInput:
    """Our error for one of FastAPI, which validates query parameters and the small bodies."""
    body = route.body_field if isinstance(route, APIRoute) else None
    where = error.errors()[0]["loc"][0]
    details = [{**one, "loc": one["loc"][1:]} for one in error.errors() if one["loc"][0] == where]
    return describe(details, [] if body is None else list(fields_of(body.field_info.annotation)), where)


def describe(details: Sequence[Detail], known: Collection[str] = (), where: str = "body") -> InvalidInput:
    """Our error for pydantic's: each place with what pydantic says about it, or the first unknown field.

    The message never quotes a value, because values may be texts, and messages may be logged.
    """
    if len(details) > MOST_UNKNOWN:
        return too_many(len(details), "unknown or wrong fields")
    if details[0]["type"] == "json_invalid":
        why = str(details[0]["ctx"]["error"])
        if "hex escape" in why:
            return TokenizerFailure(f"a text holds half of a surrogate pair, which is not valid Unicode: {why}")
        return InvalidInput(f"the body is not valid JSON: {why}")
    names = [path_of(one["loc"]) for one in details if one["type"] == "extra_forbidden"]
    if names and "." not in names[0]:
        return unknown(names, known, "field")
    messages: dict[str, list[str]] = {}
    for one in details:
        messages.setdefault(path_of(one["loc"]), []).append(str(one["msg"]))
    # If a value may have several forms, the message is about the form that fits best: the fault lies deepest in it.
    best = [path for path in messages if not path or not any(other.startswith(f"{path}.") for other in messages)]
    said = [f"{placed(path, where)}: {either(messages[path])}" for path in best[:NAMED]]
    error = InvalidInput("; ".join(said) + (f"; and {len(best) - NAMED} more" if len(best) > NAMED else ""))
    error.field = best[0] or where
    return error


def path_of(location: Sequence[str | int]) -> str:
    """A place as a path, without the names of alternative forms, which are in parentheses."""
    return ".".join(str(part)[:SHOWN] for part in location if not str(part).startswith("("))


def placed(path: str, where: str) -> str:
    if not path:
        return f"the {where}"
    return place(path) if where == "body" else f"{path} in the {where}"


def either(messages: Sequence[str]) -> str:
    """What pydantic says about each form that a value may have, as one sentence. A form whose type fits goes first."""
    fitting = [message for message in messages if not message.startswith("Input should be a valid ")]
    first, *others = dict.fromkeys(fitting or messages)
    return ", or ".join([first, *(other.removeprefix("Input should be ") for other in others)])


def unknown(names: Sequence[str], known: Collection[str], what: str) -> InvalidInput:
    """Error for unknown names. For the first, suggests the nearest known name, or lists all if none is near."""
    if len(names) > MOST_UNKNOWN:
        return too_many(len(names), f"unknown {what}s")
    known = list(dict.fromkeys(known))
    name = names[0][:SHOWN]
    near = nearest(name, known)
    if near == name:  # the route knows this field, but not in the kind of body that the other fields belong to
        remedy = "cannot be combined with the other fields that were sent"
    elif near is not None:
        remedy = f"unknown {what}; did you mean {near}?"
    else:
        remedy = f"unknown {what}; " + (f"known are {', '.join(known)}" if known else "this route takes none")
    error = InvalidInput(f"{name or '(no name)'}: {remedy}")
    error.field = name
    return error


def too_many(count: int, what: str) -> InvalidInput:
    """Error for a request with more than MOST_UNKNOWN faults, none of which is looked at."""
    return InvalidInput(f"the request has {count:,} {what}; the page /docs lists those of each route")
