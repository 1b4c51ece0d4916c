"""The OpenAPI document: FastAPI's document with our errors, examples, summaries and order of routes."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic.json_schema import models_json_schema

from isosim.api.bodies import REF
from isosim.api.calibration.schemas import CalibrateRequest, LabelsRequest
from isosim.api.compatible.tensors import InferRequest
from isosim.api.errors import V1_TYPES
from isosim.api.parameters import below, flat
from isosim.api.policy import OPEN, policy_of
from isosim.api.requests import json_response
from isosim.server.answers import ANSWERS

DESCRIPTION = """
Every response carries `x-request-id`, `x-isosim-contract` (the version of this contract), `x-total-time` (ms),
`x-tokenization-time`, `x-queue-time`, `x-inference-time` (ms) and `x-compute-tokens`. The last four are 0 if no text
was encoded. Scoring answers name the domain, its version and the encoder in `x-isosim-domain`, `x-isosim-version` and
`x-isosim-encoder`. `x-isosim-flags: unreadable` means that the encoder knows too few words of at least one
text, or cannot see where two texts of a pair differ.
Routes that are compatible with other services list the fields that they do
not use in `x-isosim-ignored`, but refuse a field whose name resembles `domain`, `space`, `gallery` or `threshold`. All
other routes refuse unknown fields and query parameters, and suggest the nearest known name. Errors under `/v1` have
OpenAI's form. If the server has a key file, requests need an API key.
""".strip()

REQUEST_ID = "4f1c2a9b7d3e4c5f8a6b0d1e2f3a4b5c"

# Order of routes in the document: OWN, then routes compatible with other services, then OPERATIONS.
OWN = ("/similarity", "/percentile", "/inspect", "/calibrate", "/domains")
OPERATIONS = ("/info", "/health", "/ping", "/livez", "/readyz", "/metrics", "/console")

# Example errors by status: type and message. ERRORS_OF overrides them for single routes.
ERRORS = {
    400: ("Empty", "`pairs` cannot be empty"),
    401: ("Unauthorized", "an API key is needed"),
    403: ("Forbidden", "the API key lacks the scope 'calibrate'"),
    404: ("NotFound", "no domain 'ticket'; did you mean 'tickets'? GET /domains lists the domains"),
    409: ("Conflict", "domain 'tickets' has no reference; calibrate it from text: POST /calibrate"),
    413: ("TooLarge", "the body has 2000001 bytes, at most 2000000 are taken"),
    415: (
        "UnsupportedMedia",
        "content-type 'multipart/form-data' (curl -F sends it) is a form; this route reads JSON: curl -H "
        "'content-type: application/json' -d '{…}'",
    ),
    422: ("Validation", 'limit is "x"; it must be a whole number'),
    424: ("Backend", "the encoder gave vectors that are not finite"),
    429: ("Overloaded", "too many texts are waiting; ask again later"),
    500: ("Internal", "unexpected error; the log has it under this request id"),
    503: ("Unhealthy", "the server is starting or stopping"),
}
ERRORS_OF = {
    ("POST /similarity", 422): ("Validation", 'pairs[3] (the 4th pair) has 3 texts; a pair is two texts, ["a", "b"]'),
    ("POST /percentile", 422): ("Validation", "cosines[1] (the 2nd cosine) is a string; it must be a number"),
    ("POST /percentile", 400): ("Empty", "`cosines` cannot be empty"),
    ("POST /embed", 400): ("Empty", "`inputs` cannot be empty"),
    ("POST /calibrate", 400): ("Empty", "texts: no sentence was posted"),
    ("POST /calibrate", 422): ("Validation", "texts: 2 distinct sentences; method 'auto' needs at least 200"),
    ("POST /inspect", 400): ("Empty", "the file is empty"),
    ("POST /domains/{domain}/labels", 422): (
        "Validation",
        'labels[1] (the 2nd labelled pair) has 2 entries; a labelled pair is ["a", "b", 1]: two texts, a label (0, 1 '
        "or a grade), and a weight if any",
    ),
}

# FastAPI does not know the schemas of these request bodies, because the routes parse the bodies without FastAPI.
# `document` adds the schemas.
READ_BY_ROUTES = (CalibrateRequest, LabelsRequest, InferRequest)


def group_of(path: str) -> int:
    """Sort key of a path. All paths of a group have the same key, so that sorting keeps their order."""
    if below(path, OWN):
        return next(number for number, place in enumerate(OWN) if below(path, [place]))
    return len(OWN) + below(path, OPERATIONS)


def summaries_of(app: FastAPI) -> dict[str, str]:
    """The summary of each route: the argument `summary` of its decorator, or the first sentence of its docstring."""
    return {
        f"{method} {route.path_format}": route.summary or first_sentence(route.description)
        for route in flat(app.routes)
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }


def first_sentence(text: str) -> str:
    """The first sentence of a text, in one line and without its full stop."""
    return " ".join(text.split()).partition(". ")[0].removesuffix(".")


def add_answer(route: str, responses: dict[str, Any]) -> None:
    """Adds the example from ANSWERS to a route's successful answer."""
    for status, response in responses.items():
        if int(status) < 300 and route in ANSWERS:
            response["content"]["application/json"]["example"] = ANSWERS[route]


def add_errors(route: str, responses: dict[str, Any]) -> None:
    """Adds an example to each documented error of a route. Routes under /v1 have OpenAI's form of errors."""
    for status, response in responses.items():
        if int(status) < 400 or "application/json" not in response.get("content", {}):
            continue
        error_type, message = ERRORS_OF.get((route, int(status)), ERRORS[int(status)])
        body: dict[str, Any]
        if " /v1/" in route:
            kind = V1_TYPES.get(int(status), "server_error")
            body = {"error": {"message": message, "type": kind, "param": None, "code": error_type.lower()}}
        else:
            body = {"error": message, "error_type": error_type, "request_id": REQUEST_ID}
        response["content"]["application/json"]["example"] = body


def document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of the application's routes."""
    openapi = get_openapi(
        title=app.title, version=app.version, summary=app.summary, description=DESCRIPTION, routes=app.routes
    )
    schemas = openapi["components"]["schemas"]
    _, more = models_json_schema([(model, "validation") for model in READ_BY_ROUTES], ref_template=REF)
    schemas |= more.get("$defs", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    openapi["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    summaries = summaries_of(app)
    with_key = {
        f"{method} {route.path_format}"
        for route in flat(app.routes)
        if isinstance(route, APIRoute) and policy_of(route).key
        for method in route.methods or ()
    }
    openapi["paths"] = dict(sorted(openapi["paths"].items(), key=lambda item: group_of(item[0])))
    for path, operations in openapi["paths"].items():
        for method, operation in operations.items():
            operation["summary"] = summaries[f"{method.upper()} {path}"]
            add_answer(f"{method.upper()} {path}", operation["responses"])
            add_errors(f"{method.upper()} {path}", operation["responses"])
            # FastAPI documents its own form of 422 for each route with parameters. We never send it, so it is removed.
            if "HTTPValidationError" in str(operation["responses"].get("422")):
                del operation["responses"]["422"]
            if f"{method.upper()} {path}" in with_key:
                operation["security"] = [{"key": []}, {}]
    return openapi


def install(app: FastAPI) -> None:
    """Makes the app serve `document(app)` at `/openapi.json`. The document is built at the first request."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = document(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]

    @app.get("/openapi.json", include_in_schema=False, dependencies=[OPEN])
    def openapi_json() -> Response:  # a plain function, which FastAPI runs in a thread
        return json_response(app.openapi())
