"""Checks the names of query parameters and body fields, and suggests the nearest known name for a misspelt one.

Our own routes refuse all unknown names. Compatible routes ignore unknown names, because other services may define
them. But they refuse a name that resembles one of ours: if `domian` were ignored, the scores would be those of the
default domain.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, get_args, get_type_hints
from urllib.parse import parse_qsl

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.routing import BaseRoute, Route
from starlette.types import Scope

from isosim.api.bodies import Compatible, Own
from isosim.errors import InvalidInput, IsosimError
from isosim.wording import SHOWN, nearest, place

OURS = ("domain", "space", "gallery", "threshold")  # our own fields that callers may also send to compatible routes
ELSEWHERE = {  # our own fields that only one route takes, each with a hint that names this route
    "gallery": "POST /rerank takes one",
    "threshold": "POST /similarity takes the name of a saved threshold and returns which pairs match",
}
# Minimum difflib ratio at which a name counts as a misspelling of one of ours: `domian` has 0.83, `spcae` 0.8; the
# fields of text-embeddings-inference, OpenAI, Cohere, Jina and vLLM are below 0.75.
CLOSE = 0.8
MOST_PARAMETERS = 64
MOST_UNKNOWN = 16  # maximum number of unknown names that a request may have; more are refused without suggestions
MOST_BYTES = 8192  # maximum number of bytes of a query string; 60 kB took 5.7 ms to parse

# Routes whose parameters other services defined; a route that is not listed here is our own.
COMPATIBLE = ("/v1", "/v2", "/embed", "/rerank", "/score", "/tokenize", "/info", "/health", "/ping")
# Probes, scrapers and browsers add parameters of their own (`/livez?verbose`); the routes listed here ignore them.
EXEMPT = ("/livez", "/readyz", "/metrics", "/console", "/docs", "/openapi.json")


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
        yield from (parameter.alias for parameter in part.query_params)
        for dependency in part.dependencies:
            yield from declared(dependency)

    return list(dict.fromkeys(declared(route.dependant))) if isinstance(route, APIRoute) else []


def models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, Own | Compatible):
        yield annotation
    for part in get_args(annotation):
        yield from models(part)


def by_name(kind: type[BaseModel]) -> dict[str, type[BaseModel]]:
    kinds = {kind.__name__: kind}
    for derived in kind.__subclasses__():
        kinds |= by_name(derived)
    return kinds


def bodies(route: BaseRoute | None) -> list[type[BaseModel]]:
    """Models of a route's JSON body. If the route parses its body itself, the model that `openapi_extra` names."""
    if not isinstance(route, APIRoute):
        return []
    content = (route.openapi_extra or {}).get("requestBody", {}).get("content", {})
    reference = content.get("application/json", {}).get("schema", {}).get("$ref", "")
    documented = (by_name(Own) | by_name(Compatible)).get(reference.rpartition("/")[2])
    if documented is not None:
        return [documented]
    return list(models(get_type_hints(route.endpoint, include_extras=True).get("body")))


def own_fields(route: BaseRoute | None) -> list[str]:
    """Field names of the route's bodies. Leaves out bodies whose format another service defines."""
    names = [
        field.alias or name
        for model in bodies(route)
        if issubclass(model, Own)
        for name, field in model.model_fields.items()
    ]
    return list(dict.fromkeys(names))  # without duplicates: the bodies of a route share fields


def unknown(name: str, what: str, known: Sequence[str]) -> IsosimError:
    """Error for an unknown name; suggests the nearest known name, or lists all if none is near."""
    near = nearest(name.rpartition(".")[2], known)
    # The route knows this field. It accepts several kinds of body, and the other fields that were sent belong to a kind
    # of body without this field.
    if near == name:
        return InvalidInput(f"{name}: cannot be combined with the other fields that were sent; send one or the other")
    if near is not None:
        remedy = f"did you mean {near}?"
    else:
        remedy = f"known are {', '.join(known)}" if known else "this route takes none"
    return refusal(name, f"unknown {what}; {remedy}")


def fault(kind: type[IsosimError], field: str, why: str) -> IsosimError:
    """Error that names its field in the message (`pairs[4][1] …`) and as a path for clients (`pairs.4.1`)."""
    named = place(field)
    error = kind(f"{named}{why}" if why.startswith(":") else f"{named} {why}")
    error.field = field.strip("`")
    return error


def refusal(name: str, why: str) -> IsosimError:
    """Error for a parameter or field, with its name as it was sent; a long name is cut."""
    error = InvalidInput(f"{name[:SHOWN] or '(no name)'}: {why}")
    error.field = name[:SHOWN]
    return error


def check_query(scope: Scope) -> None:
    """Raises InvalidInput for a query parameter that the request's route does not take."""
    query, path = scope["query_string"], scope["path"]
    if not query or below(path, EXEMPT):
        return
    if len(query) > MOST_BYTES:
        raise InvalidInput(f"the query has {len(query):,} bytes, at most {MOST_BYTES:,} are read")
    try:
        pairs = parse_qsl(
            query.decode("latin-1"), keep_blank_values=True, errors="replace", max_num_fields=MOST_PARAMETERS
        )
    except ValueError:
        raise InvalidInput(f"the query has more than {MOST_PARAMETERS} parameters") from None
    route = scope["route"]
    if not isinstance(route, Route):
        return  # the router will answer 404 or 405
    known, given = parameters(route), Counter(name for name, _ in pairs)
    if (count := sum(name not in known for name in given)) > MOST_UNKNOWN:
        raise too_many_unknown(count, "query parameters")
    for name, times in given.items():
        if name not in known:
            refuse_parameter(name, route, known)
        elif times > 1:  # FastAPI would silently take the last value
            raise refusal(name, f"given {times} times in the query; give it once")


def too_many_unknown(count: int, what: str) -> InvalidInput:
    """Error for a request with more than MOST_UNKNOWN unknown names, none of which is looked at."""
    return InvalidInput(f"the request has {count:,} unknown {what}; the page /docs lists those of each route")


def refuse_parameter(name: str, route: Route, known: Sequence[str]) -> None:
    """Raises InvalidInput; on a compatible route only if the name resembles one of ours."""
    compatible = route.path == "/" or below(route.path, COMPATIBLE)
    if compatible and nearest(name, OURS, CLOSE) is None:
        return
    models = bodies(route)
    if compatible:
        raise misplaced(name, "query parameter", models[0] if models else None)
    if name in own_fields(route):
        raise refusal(name, "belongs in the JSON body, not in the query")
    raise unknown(name, "query parameter", known)


def check_ignored(names: Iterable[str], body: type[BaseModel]) -> None:
    """Raises InvalidInput if an unknown field of a compatible body resembles one of ours."""
    for name in names:
        if nearest(name.rpartition(".")[2], OURS, CLOSE) is not None:
            raise misplaced(name, "field", body)


def misplaced(name: str, what: str, body: type[BaseModel] | None) -> IsosimError:
    """Error for a name on a compatible route that resembles one of ours; the message says where its value belongs."""
    intended = str(nearest(name.rpartition(".")[2], OURS, CLOSE))
    place = None if body is None else place_of(intended, body)
    if place is not None:
        remedy = f"did you mean the field {place} of the body?"
    elif intended in ELSEWHERE:
        remedy = f"this route takes no {intended}; {ELSEWHERE[intended]}"
    elif body is not None and "model" in body.model_fields:
        remedy = "name the domain in the field model: isosim/<domain>, or isosim/<domain>:raw for raw vectors"
    else:
        remedy = (
            f"this route takes no {intended}; routes that have the body field `model` accept the value isosim/<domain>"
        )
    return refusal(name, f"unknown {what}; {remedy}")


def place_of(name: str, body: type[BaseModel]) -> str | None:
    """Path of the field with this name in a body: `domain` or `parameters.domain`; None if the body lacks the field."""
    if name in body.model_fields:
        return name
    for outer, field in body.model_fields.items():
        for inner in models(field.annotation):
            place = place_of(name, inner)
            if place is not None:
                return f"{outer}.{place}"
    return None
