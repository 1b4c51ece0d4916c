"""Checks the names of query parameters, and of fields that a compatible route ignores.

Our own routes refuse all unknown names. Compatible routes ignore them, because other services may define them, except
the names of our own fields: if `domain` were ignored, the scores would be those of the default domain.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import parse_qsl

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.routing import BaseRoute, Route
from starlette.types import Scope

from isosim.api.validation import unknown
from isosim.errors import InvalidInput, IsosimError
from isosim.wording import SHOWN, place

OURS = ("domain", "space", "gallery", "threshold")  # fields that change scores and that no other service defines
OWN = ("/similarity", "/percentile", "/inspect", "/calibrate", "/matches", "/domains")  # routes that we define
MOST_PARAMETERS = 64


def below(path: str, places: Iterable[str]) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in places)


def flat(routes: Sequence[BaseRoute]) -> Iterator[BaseRoute]:
    """All routes, also those inside included routers; FastAPI keeps an included router as one nested route."""
    for route in routes:
        inner = getattr(route, "original_router", None)
        yield from flat(inner.routes) if inner is not None else (route,)


def parameters(route: BaseRoute) -> list[str]:
    """The query parameters that a route and its dependencies declare."""

    def declared(part: Dependant) -> Iterator[str]:
        for parameter in part.query_params:
            kind = parameter.field_info.annotation
            if isinstance(kind, type) and issubclass(kind, BaseModel):  # of several parameters
                yield from kind.model_fields
            else:
                yield parameter.alias
        for dependency in part.dependencies:
            yield from declared(dependency)

    if not isinstance(route, APIRoute):
        return []
    documented = (parameter["name"] for parameter in (route.openapi_extra or {}).get("parameters", ()))
    return list(dict.fromkeys([*declared(route.dependant), *documented]))


def fault(kind: type[IsosimError], field: str, why: str) -> IsosimError:
    """Error that names its field in the message (`pairs[4][1] …`) and as a path for clients (`pairs.4.1`)."""
    named = place(field)
    error = kind(f"{named}{why}" if why.startswith(":") else f"{named} {why}")
    error.field = field.strip("`")
    return error


def check_query(scope: Scope) -> None:
    """Raises InvalidInput for a query parameter that the request's route does not take, or for too many parameters,
    which FastAPI would parse on every route."""
    query, path = scope["query_string"], scope["path"]
    if query.count(b"&") >= MOST_PARAMETERS:
        raise InvalidInput(f"the query has more than {MOST_PARAMETERS} parameters")
    if not query or not (scope["method"] == "POST" or below(path, OWN)):
        return  # probes, scrapers and browsers add parameters of their own: `/livez?verbose`
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    given = Counter(name for name, _ in pairs)
    if not below(path, OWN):
        check_ours(given, "query parameter")
        return
    route = scope["route"]
    if not isinstance(route, Route):
        return  # the router will answer 404 or 405
    known = parameters(route)
    names = [name for name in given if name not in known]
    twice = [name for name in given if given[name] > 1]
    if names:
        raise unknown(names, known, "query parameter")
    if twice:  # FastAPI would silently take the last value
        raise fault(InvalidInput, twice[0], f": given {given[twice[0]]} times in the query; give it once")


def check_ours(names: Iterable[str], what: str) -> None:
    """Raises InvalidInput if an unknown name on a compatible route is that of a field of ours."""
    for name in names:
        if name.rpartition(".")[2] in OURS:
            raise fault(InvalidInput, name[:SHOWN], f": this route takes no such {what}; /docs lists what it takes")
