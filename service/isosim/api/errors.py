"""The HTTP status and `error_type` of each error, in one table, and the answers with them."""

import re

import orjson
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match, Route

from isosim import errors as e
from isosim.api.parameters import below, flat
from isosim.api.state import service_of
from isosim.api.validation import refused

# The order does not matter: `look_up` takes the most specific base class that is listed.
TABLE: dict[type[e.IsosimError], tuple[int, str]] = {
    e.EmptyInput: (400, "Empty"),
    e.Unauthorized: (401, "Unauthorized"),
    e.Forbidden: (403, "Forbidden"),
    e.NotFound: (404, "NotFound"),
    e.MethodNotAllowed: (405, "MethodNotAllowed"),
    e.Conflict: (409, "Conflict"),
    e.TooLarge: (413, "TooLarge"),
    e.UnsupportedMedia: (415, "UnsupportedMedia"),
    e.InvalidInput: (422, "Validation"),
    e.TokenizerFailure: (422, "Tokenizer"),
    e.BackendFailure: (424, "Backend"),
    e.Overloaded: (429, "Overloaded"),
    e.NotReady: (503, "Unhealthy"),
    e.Unavailable: (503, "Unavailable"),
}
ERROR_TYPES = sorted({name for _, name in TABLE.values()} | {"Internal"})
HEALS = {429, 503}  # statuses after which a client may retry

# How a caller of this API takes each action.
REMEDIES = {
    e.Action.ADD_ENCODER: "register such an encoder: isosim encoder add NAME --dimensions N --unit-vectors",
    e.Action.ADD_LABELS: 'give it some: POST /domains/{domain}/labels with {{"labels": [["a", "b", 1], …]}}',
    e.Action.ASK_LESS: "precision={precision} lets {pairs} pairs pass",
    e.Action.CALIBRATE: "calibrate it from text: POST /calibrate?domain={domain}",
    e.Action.DELETE_THRESHOLD: "delete one first: DELETE /domains/{domain}/thresholds/NAME",
    e.Action.EXPORT: "export it: isosim export --encoder {source}",
    e.Action.JUDGE: "GET /matches/{match}/label gives the pairs to judge",
    e.Action.LIST_DOMAINS: "GET /domains lists the domains",
    e.Action.LIST_MODELS: "GET /v1/models lists the models",
    e.Action.LIST_THRESHOLDS: "GET /domains/{domain}/thresholds lists those that are saved",
    e.Action.NEW_KEY: "ask the server's operator for one: isosim keys new --scopes {scope} --add FILE",
    e.Action.REPAIR: "rebuild it: isosim store repair {domain}",
}

# Paths that OpenAI's clients request if their base_url does not end with /v1. They show only errors in OpenAI's shape.
WITHOUT_V1 = ("/embeddings", "/models", "/chat/completions", "/completions", "/responses")
# OpenAI's error types by status, for routes under /v1. These routes answer 400 where others answer 422.
V1_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    409: "conflict_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}


def look_up(error: e.IsosimError) -> tuple[int, str]:
    return next(TABLE[base] for base in type(error).__mro__ if base in TABLE)


def text_of(remedy: e.Remedy) -> str:
    return REMEDIES[remedy.action].format_map(remedy.arguments)


def in_words(error: e.IsosimError) -> str:
    """The message with the remedy, for answers that have an error among other facts."""
    return str(error) if error.remedy is None else f"{error}; {text_of(error.remedy)}"


def answer(
    request: Request,
    status: int,
    error_type: str,
    message: str,
    headers: dict[str, str],
    field: str | None = None,
    remedy: e.Remedy | None = None,
) -> Response:
    """An error's answer. If something can be done about it, the body says what, in words and for programs."""
    text = None if remedy is None else text_of(remedy)
    service_of(request).metrics.errors.labels(error_type).inc()
    request.scope["state"]["trace"].error_type = error_type
    body: dict[str, object]
    if request.scope["path"].startswith("/v1/") or below(request.scope["path"], WITHOUT_V1):
        status = 400 if status == 422 else status
        kind = V1_TYPES.get(status, "server_error")
        code = "model_not_found" if status == 404 and field == "model" else error_type.lower()
        message = message if text is None else f"{message}; {text}"
        body = {"error": {"message": message, "type": kind, "param": field, "code": code}}
    else:
        body = {"error": message, "error_type": error_type, "request_id": request.scope["state"].get("request_id", "")}
        if remedy is not None:
            body["remedy"] = {"action": remedy.action, "arguments": remedy.arguments, "text": text}
    if status not in HEALS:
        headers["x-should-retry"] = "false"
    return Response(orjson.dumps(body), status, headers, media_type="application/json")


def domain_error(request: Request, error: e.IsosimError) -> Response:
    status, name = look_up(error)
    headers = {}
    if isinstance(error, e.MethodNotAllowed):
        headers["Allow"] = error.allowed
    if isinstance(error, e.Overloaded):
        headers["Retry-After"] = str(error.retry_after)
    if isinstance(error, e.ShareUsed):
        service_of(request).limits.refused += 1
    if status == 503:
        headers["Retry-After"] = "5"
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status >= 500 or status in (403, 424):
        request.scope["state"]["trace"].cause = error
    return answer(request, status, name, str(error), headers, error.field, error.remedy)


def answer_to(request: Request, error: Exception) -> Response:
    """The answer to whatever a route or a layer raised.

    Errors of storage and unexpected errors are logged. For an unexpected error, the client gets only the request id.
    """
    if isinstance(error, HTTPException):  # of Starlette; FastAPI wraps errors raised while it reads the body
        if isinstance(error.__cause__, ClientDisconnect):
            return Response(status_code=499)  # the client has disconnected: only metrics and log get this status
        error = error.__cause__ if isinstance(error.__cause__, e.IsosimError) else of_starlette(request, error)
    elif isinstance(error, RequestValidationError):
        error = refused(error, request.scope.get("route"))
    if isinstance(error, e.IsosimError):
        return domain_error(request, error)
    if isinstance(error, OSError):
        response = domain_error(request, e.Unavailable(f"storage failed: {error.strerror or type(error).__name__}"))
    else:
        response = answer(request, 500, "Internal", "unexpected error; the log has it under this request id", {})
    request.scope["state"]["trace"].cause = error
    return response


def of_starlette(request: Request, error: HTTPException) -> e.IsosimError:
    what = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        without = below(request.url.path, WITHOUT_V1)
        return e.NotFound(
            f"no route {what}; " + ("base_url must end with /v1" if without else "/docs lists the routes")
        )
    if error.status_code == 405:
        files = (error.headers or {}).get("Allow", "")  # of a folder of files, which has no routes
        return e.MethodNotAllowed(what, ", ".join(sorted(methods_of(request))) or files)
    return e.InvalidInput(str(error.detail))


PARAMETER = re.compile(r"\{[^}]*\}")


def methods_of(request: Request) -> set[str]:
    """Methods that the request's path allows: those of all routes with the path template that fits best.

    Starlette itself names only the methods of the first matching route. Several templates may match a path:
    `/matches/{job_id}` also matches `/matches/check`. The template with the most characters outside its parameters
    fits best.
    """
    fitting = [
        route
        for route in flat(request.app.routes)
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
    ]
    meant = max((route.path for route in fitting), key=lambda path: len(PARAMETER.sub("", path)), default="")
    return {method for route in fitting if route.path == meant for method in route.methods or ()}
