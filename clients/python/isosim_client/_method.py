"""What the two clients' methods have in common with the calls they send: signature, types and documentation."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_args, get_type_hints

F = TypeVar("F", bound=Callable[..., Any])


def documented(method: F, build: Callable[..., Any], owner: str) -> F:
    """Gives a method the name, documentation and signature of the function that builds its call."""
    hints = get_type_hints(build)
    (answer,) = get_args(hints["return"])  # of Call[answer]
    given = inspect.signature(build)
    self = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    method.__name__ = build.__name__
    method.__qualname__ = f"{owner}.{build.__name__}"
    method.__doc__ = build.__doc__
    method.__annotations__ = hints | {"return": answer}
    shown = given.replace(parameters=[self, *given.parameters.values()], return_annotation=answer)
    vars(method)["__signature__"] = shown  # read by help() and by notebooks
    return method
