"""The OpenAPI document: what FastAPI makes of the routes, put right where it says more or less than they do."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from service.api.bodies import REF
from service.api.calibration.schemas import CalibrateRequest, LabelsRequest
from service.api.compatible.tensors import InferRequest
from service.api.middleware import keyless

DESCRIPTION = """
Every response carries `x-request-id` and the time it took (`x-total-time`, ms); where texts were encoded,
`x-tokenization-time`, `x-queue-time`, `x-inference-time` (ms) and `x-compute-tokens`. Scoring answers say where they
come from: `x-isosim-domain`, `x-isosim-version`, `x-isosim-encoder`; and `x-isosim-flags: unreadable` where the encoder
knows no token of a text, which gives such texts nearly the same vector. Fields of compatible bodies that are not used
are named in `x-isosim-ignored`; one that is close to `domain` or `space` is refused. Our own routes refuse unknown
fields and query parameters, and name the nearest known one. Errors under `/v1` have OpenAI's shape. Keys are needed
where the server was given some.
""".strip()

READ_BY_ROUTES = (CalibrateRequest, LabelsRequest, InferRequest)  # bodies that FastAPI does not see


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
    for path, operations in openapi["paths"].items():
        for method, operation in operations.items():
            # FastAPI adds a 422 of its own shape wherever there are parameters; ours stand in the routes.
            if "HTTPValidationError" in str(operation["responses"].get("422")):
                del operation["responses"]["422"]
            if not keyless(method.upper(), path):
                operation["security"] = [{"key": []}, {}]
    return openapi


def install(app: FastAPI) -> None:
    """Makes `/openapi.json` this document; it is written at the first request for it."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = document(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
