"""The route class of the scoring routes: FastAPI documents them, and stays out of their way."""

from collections.abc import Callable, Coroutine
from typing import Any, get_type_hints

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError

from service.api.errors import domain_error
from service.api.requests import check_json
from service.api.state import service_of
from service.core.errors import Overloaded


class ScoringRoute(APIRoute):
    """Calls its endpoint with `(body, service, trace)`: the key checked, the JSON parsed straight into its model.

    FastAPI's own handler solves dependencies and parses JSON to Python before models: half of a cached request's
    time (measured: loadtest/README.md). The endpoint's signature stays what the documentation is made from.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        endpoint = self.endpoint
        adapter: TypeAdapter[Any] = TypeAdapter(get_type_hints(endpoint, include_extras=True)["body"])

        async def handle(request: Request) -> Response:
            service = service_of(request)
            trace = request.scope["state"]["trace"]
            trace.grant = service.keys.check(request.headers.get("authorization"), "read")
            check_json(request)
            content = await request.body()
            try:
                body = adapter.validate_json(content)
            except ValidationError as error:
                found = error.errors(include_url=False, include_input=False)
                raise RequestValidationError([{**one, "loc": ("body", *one["loc"])} for one in found]) from None
            try:
                response: Response = await endpoint(body, service, trace)
            except Overloaded as error:  # refusing must cost little, most of all when there is much to refuse
                return domain_error(request, error)
            return response

        return handle
