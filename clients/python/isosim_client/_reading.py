"""Converts JSON to frozen dataclasses. Accepts answers of newer and older servers.

Unknown fields are ignored. A missing field gets its default. A missing field without a default raises UnexpectedAnswer.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import UnexpectedAnswer

T = TypeVar("T")
Reader = Callable[[Any], Any]


class Misfit(Exception):
    """A value does not fit its type. `fields` lead to the value."""

    def __init__(self, problem: str, *fields: str) -> None:
        super().__init__(problem, *fields)
        self.problem, self.fields = problem, fields


def expected(wanted: str, value: object) -> Misfit:
    return Misfit(f"expected {wanted}, got {value!r:.80}")


def read(hint: type[T], value: Any) -> T:
    """Converts a JSON value to the type `hint`, which is a dataclass or a tuple of dataclasses.

    Raises:
        UnexpectedAnswer: the value does not fit; the message names the field.
    """
    try:
        kind: Any = hint
        found: T = reader(kind)(value)
    except Misfit as misfit:
        place = f"{'.'.join(misfit.fields)}: " if misfit.fields else ""
        raise UnexpectedAnswer(f"{place}{misfit.problem}; is this an isosim server?") from None
    return found


@cache
def reader(hint: Any) -> Reader:
    """The function that converts JSON to a type; it is made once for each type."""
    if hint is Any:
        return lambda value: value
    if dataclasses.is_dataclass(hint):
        return fields_of(hint)
    kind, arguments = get_origin(hint), get_args(hint)
    if kind in (Union, types.UnionType):
        inner = reader(next(argument for argument in arguments if argument is not type(None)))
        return lambda value: None if value is None else inner(value)
    if kind is dict:
        return mapping(reader(arguments[1]))
    if kind is tuple:  # of equal entries: of any number, or of as many as are named
        return entries(reader(arguments[0]), None if arguments[1:] == (...,) else len(arguments))
    return plain(hint)


def plain(kind: Any) -> Reader:
    accepted = (int, float) if kind is float else kind

    def read_plain(value: Any) -> Any:
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            raise expected(kind.__name__, value)
        return kind(value)

    return read_plain


def entries(inner: Reader, number: int | None) -> Reader:
    wanted = "a list" if number is None else f"a list of {number}"

    def read_entries(value: Any) -> Any:
        if not isinstance(value, list) or number not in (None, len(value)):
            raise expected(wanted, value)
        return tuple(map(inner, value))

    return read_entries


def mapping(inner: Reader) -> Reader:
    def read_mapping(value: Any) -> Any:
        if not isinstance(value, dict):
            raise expected("an object", value)
        return {name: inner(entry) for name, entry in value.items()}

    return read_mapping


def fields_of(kind: Any) -> Reader:
    """The reader of a dataclass. If a field has another name in the JSON, its `metadata["wire"]` is that name."""
    hints = get_type_hints(kind)
    known = [
        (field, field.metadata.get("wire", field.name), reader(hints[field.name])) for field in dataclasses.fields(kind)
    ]

    def read_fields(value: Any) -> Any:
        if not isinstance(value, dict):
            raise expected("an object", value)
        facts = {}
        for field, wire, inner in known:
            if wire in value:
                try:
                    facts[field.name] = inner(value[wire])
                except Misfit as misfit:
                    raise Misfit(misfit.problem, wire, *misfit.fields) from None
            elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                raise Misfit("is missing", wire)
        return kind(**facts)

    return read_fields
