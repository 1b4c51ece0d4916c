"""What several routes ask of a request before they work: key, content type, limits."""

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import orjson
from fastapi import Depends, Request
from fastapi.responses import Response

from service.api.auth import Scope
from service.api.errors import TABLE
from service.api.middleware import Trace
from service.api.schemas import Compatible, ErrorBody
from service.api.state import ServiceDep
from service.core.calibration import Calibration
from service.core.errors import EmptyInput, InvalidInput, UnsupportedMedia
from service.core.texts import Pooled, Side, Text


def needs(scope: Scope) -> Any:  # a dependency; FastAPI types it no closer
    """Lets a request pass whose key has the scope."""

    async def check(request: Request, service: ServiceDep) -> None:  # async: a plain function costs a thread
        service.keys.check(request.headers.get("authorization"), scope)

    return Depends(check)


def check_json(request: Request) -> None:
    """Raises UnsupportedMedia where the body is declared as something else than JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise UnsupportedMedia(f"content-type {kind!r}: this route reads application/json")


async def json_body(request: Request) -> None:  # async: a plain function costs a thread
    check_json(request)


JsonBody = Depends(json_body)


async def trace_of(request: Request) -> Trace:
    trace: Trace = request.scope["state"]["trace"]
    return trace


TraceDep = Annotated[Trace, Depends(trace_of)]


def check_text(text: str, where: str, max_characters: int) -> None:
    """Raises EmptyInput or InvalidInput, naming the field."""
    if not text or text.isspace():
        raise EmptyInput(f"{where} is empty")
    if len(text) > max_characters:
        raise InvalidInput(f"{where} has {len(text)} characters, at most {max_characters} are taken")


def check_count(count: int, where: str, limit: int) -> None:
    if not count:
        raise EmptyInput(f"{where} cannot be empty")
    if count > limit:
        raise InvalidInput(f"{where} has {count} entries, at most {limit} are taken")


def side_of(truncation_direction: str) -> Side:
    return "left" if truncation_direction == "Left" else "right"


def check_prompt(name: str | None) -> None:
    if name is not None:
        raise InvalidInput(f"prompt_name {name!r}: this encoder has no named prompts")


def check_truncation(truncate: bool | None, texts: Sequence[Pooled], max_length: int) -> None:
    """TEI's `truncate: false`: a text that does not fit is refused."""
    if truncate is False and any(text.truncated for text in texts):
        raise InvalidInput(f"truncate is false and a text has more than {max_length} tokens")


def texts_of(contents: Sequence[str], prompt: str, side: Side = "right") -> list[Text]:
    return [Text(prompt + content, side) for content in contents]


def name_source(trace: Trace, calibration: Calibration) -> None:
    """Every score says where it came from."""
    trace.headers["x-isosim-domain"] = calibration.domain
    trace.headers["x-isosim-version"] = str(calibration.version)
    trace.headers["x-isosim-encoder"] = calibration.encoder


def name_ignored(trace: Trace, body: Compatible) -> None:
    ignored = body.ignored()
    if ignored:
        listed = ", ".join(ignored)[:512]
        trace.headers["x-isosim-ignored"] = re.sub(r"[^\x20-\x7e]", "?", listed)  # names are the caller's


def json_response(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """orjson writes numpy arrays as they are, float32 in its shortest form."""
    content = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(content, status, headers, media_type="application/json")


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error answers of a route, for the documentation."""
    names: Callable[[int], str] = lambda status: ", ".join(  # noqa: E731 - one use, one line
        sorted({n for s, n in [*TABLE.values(), (500, "Internal")] if s == status})
    )
    every = {401, 403, 500, 503, *statuses}
    return {status: {"model": ErrorBody, "description": names(status)} for status in sorted(every)}
