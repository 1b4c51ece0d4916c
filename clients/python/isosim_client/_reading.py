"""Converts JSON to frozen dataclasses. Accepts answers of newer and older servers.

Unknown fields are ignored. A missing field gets its default. A missing field without a default raises UnexpectedAnswer.
"""

from __future__ import annotations

import dataclasses
import types
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import UnexpectedAnswer

T = TypeVar("T")


def read(hint: type[T], value: Any, place: str = "") -> T:
    """Converts a JSON value to a type: a dataclass, or that of a field. `place`: the fields that lead to the value.

    Raises:
        UnexpectedAnswer: the value does not fit; the message names the field.
    """
    found: T = converted(hint, value, place)
    return found


def converted(hint: Any, value: Any, place: str) -> Any:
    kind: Any = hint  # which the next test narrows
    if hint is Any:
        return value
    if dataclasses.is_dataclass(hint):
        check(isinstance(value, dict), "an object", value, place)
        facts = {}
        for name, inner_hint, needed in fields_of(kind):
            inner = f"{place}.{name}" if place else name
            if name in value:
                facts[name] = converted(inner_hint, value[name], inner)
            elif needed:
                raise UnexpectedAnswer(f"{inner}: is missing; is this an isosim server?")
        return kind(**facts)
    if get_origin(hint) is Literal:  # a newer server may have further values
        hint = str
    if hint in (int, float, str, bool):
        accepted = (int, float) if hint is float else hint
        fits = isinstance(value, accepted) and (hint is bool or not isinstance(value, bool))
        check(fits, hint.__name__, value, place)
        return hint(value)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        given = next(argument for argument in arguments if argument is not type(None))
        return None if value is None else converted(given, value, place)
    if origin is dict:
        check(isinstance(value, dict), "an object", value, place)
        return {name: converted(arguments[1], entry, place) for name, entry in value.items()}
    check(isinstance(value, list), "a list", value, place)
    return tuple([converted(arguments[0], entry, place) for entry in value])


def check(fits: bool, wanted: str, value: object, place: str) -> None:
    if not fits:
        where = f"{place}: " if place else ""
        raise UnexpectedAnswer(f"{where}expected {wanted}, got {value!r:.80}; is this an isosim server?")


@cache
def fields_of(kind: Any) -> list[tuple[str, Any, bool]]:
    """Name and type of each field, and whether it has no default."""
    hints, missing = get_type_hints(kind), dataclasses.MISSING
    return [
        (field.name, hints[field.name], field.default is missing and field.default_factory is missing)
        for field in dataclasses.fields(kind)
    ]
