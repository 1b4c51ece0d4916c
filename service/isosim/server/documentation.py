"""The OpenAPI document: FastAPI's own, with the bodies that routes parse themselves, and the key."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic.json_schema import models_json_schema

from isosim.api.bodies import PARSED_BY_ROUTES, REF, ErrorBody, OpenAIErrorBody
from isosim.api.parameters import flat
from isosim.api.policy import OPEN, policy_of
from isosim.api.requests import json_response

DESCRIPTION = """
Every response carries `x-request-id`, `x-isosim-contract` (the version of this contract), `x-total-time` (ms),
`x-tokenization-time`, `x-queue-time`, `x-inference-time` (ms) and `x-compute-tokens`. The last four are 0 if no text
was encoded. Scoring answers name the domain, its version and the encoder in `x-isosim-domain`, `x-isosim-version` and
`x-isosim-encoder`. `x-isosim-flags: unreadable` means that the encoder knows too few words of at least one
text, or cannot see where two texts of a pair differ.
Routes that are compatible with other services list the fields that they do not use in `x-isosim-ignored`, but refuse
`domain`, `space`, `gallery` and `threshold` where they take no such field. All other routes refuse unknown fields and
query parameters. Errors under `/v1` have OpenAI's form. If the server has a key file, requests need an API key.
""".strip()
TAGS = [
    {"name": "scoring", "description": "Scores and vectors of texts, also with the bodies of other services."},
    {"name": "calibration", "description": "Jobs that fit a domain's calibration to its text."},
    {"name": "matches", "description": "Jobs that find the pairs of texts that mean the same, in one file or two."},
    {"name": "domains", "description": "Domains, their versions, thresholds and history."},
    {"name": "OpenAI", "description": "Routes for OpenAI's clients."},
    {"name": "Open Inference Protocol", "description": "Routes for clients of KServe and Triton."},
    {"name": "operations", "description": "Probes, metrics and facts about the server."},
]
ERRORS: dict[int | str, dict[str, Any]] = {  # of every route
    "4XX": {"model": ErrorBody, "description": "the request is refused; docs/reference/errors.md lists the statuses"},
    "5XX": {"model": ErrorBody, "description": "the service cannot answer"},
}


def operation_id(route: APIRoute) -> str:
    """The name of the route's function; generators name their methods so. A function's second route states its own."""
    return route.name


def document(app: FastAPI) -> dict[str, Any]:
    openapi = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        description=DESCRIPTION,
        tags=TAGS,
        routes=app.routes,
    )
    schemas = openapi["components"]["schemas"]
    parsed: list[Any] = [(model, "validation") for model in (*PARSED_BY_ROUTES, OpenAIErrorBody)]
    _, more = models_json_schema(parsed, ref_template=REF)
    schemas |= more.get("$defs", {})
    with_key = {
        (route.path_format, method.lower())
        for route in flat(app.routes)
        if isinstance(route, APIRoute) and policy_of(route).key
        for method in route.methods or ()
    }
    for path, operations in openapi["paths"].items():
        for method, operation in operations.items():
            model = OpenAIErrorBody if path.startswith("/v1/") else ErrorBody
            for status in ERRORS:  # FastAPI documents them in the media type of the route's answer
                schema = {"$ref": REF.format(model=model.__name__)}
                operation["responses"][status]["content"] = {"application/json": {"schema": schema}}
            if (path, method) in with_key:
                operation["security"] = [{"key": []}, {}]
    openapi["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
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
