"""Functions that all routes share: checks of domains and jobs, parsing of bodies."""

import re
from collections.abc import Callable, Coroutine, Mapping
from typing import Annotated, Any, TypeVar, get_type_hints

import orjson
from fastapi import Depends, Path, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter

from isosim.api.bodies import Compatible
from isosim.api.parameters import check_ours
from isosim.api.policy import SCORING
from isosim.api.state import Service, ServiceDep
from isosim.api.trace import Trace
from isosim.api.validation import MOST_UNKNOWN, parse_json, too_many
from isosim.arrays import Vectors
from isosim.encoders.loaded import LoadedEncoder
from isosim.errors import NotFound
from isosim.jobs.job import Job
from isosim.scoring.calibration import DEFAULT, DOMAIN_NAME, Calibration, DomainRef

Body = TypeVar("Body")


async def trace_of(request: Request) -> Trace:
    trace: Trace = request.scope["state"]["trace"]
    return trace


TraceDep = Annotated[Trace, Depends(trace_of)]


def name_ignored(trace: Trace, body: Compatible) -> None:
    """Lists the body's unused fields in `x-isosim-ignored`; raises InvalidInput if one has a name of ours."""
    ignored = body.ignored()
    if ignored:
        if len(ignored) > MOST_UNKNOWN:
            raise too_many(len(ignored), "unknown fields")
        check_ours(ignored, "field")
        listed = ", ".join(ignored)[:512]
        # A field name may hold characters that are not allowed in a header; each becomes "?".
        trace.headers["x-isosim-ignored"] = re.sub(r"[^\x20-\x7e]", "?", listed)


class JsonResponse(Response):
    """Encoded JSON; skips the header and type checks that Starlette's own class repeats for each answer."""

    def __init__(self, content: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        self.body, self.status_code, self.background = content, status, None
        self.raw_headers = [(b"content-length", b"%d" % len(content)), (b"content-type", b"application/json")]
        if headers:
            self.raw_headers += [(name.lower().encode(), value.encode()) for name, value in headers.items()]


def json_response(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A value as JSON; numpy arrays become lists, and a float32 gets only as many digits as it needs."""
    return JsonResponse(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY), status, headers)


def row_by_row(vectors: Vectors) -> list[orjson.Fragment]:
    """Encodes each row by itself. orjson holds the interpreter's lock, which the event loop gets between two rows; all
    rows of a large answer at once would keep it for 30 ms."""
    return [orjson.Fragment(orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY)) for row in vectors]


async def parsed(service: Service, adapter: TypeAdapter[Body], content: bytes) -> Body:
    """A JSON body. Raises InvalidInput."""
    return await service.large_json.sized(len(content) // 1024, parse_json, adapter, content)


class ScoringRoute(APIRoute):
    """Route whose endpoint takes `(body, service, trace)`; parses JSON straight into the model of its body.

    FastAPI's dependencies and its two-step parsing of JSON would take longer than all other work for a request whose
    texts are cached (loadtest/README.md). So the middleware calls `respond`; FastAPI derives the documentation from the
    endpoint's signature.
    """

    policy = SCORING

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        self.adapter: TypeAdapter[Any] = TypeAdapter(get_type_hints(self.endpoint, include_extras=True)["body"])
        return super().get_route_handler()

    async def respond(self, content: bytes, service: Service, trace: Trace) -> Response:
        response: Response = await self.endpoint(await parsed(service, self.adapter, content), service, trace)
        return response


async def resolve(service: Service, trace: Trace, ref: DomainRef | str) -> tuple[Calibration, LoadedEncoder]:
    """Finds the calibration and encoder to use for a domain. All routes resolve domains through this function.

    Raises:
        InvalidInput: `ref` is not a valid domain reference.
        Forbidden: the key may not use the domain, whether or not it exists.
        NotFound, EncoderMismatch, CorruptArtifact: see `Registry.resolve`.
    """
    ref = DomainRef.parse(ref) if isinstance(ref, str) else ref
    trace.grant.check_domain(ref.name)
    registry, limited = service.registry, trace.grant.rate is not None
    calibration = registry.in_memory(ref)
    if calibration is None:
        # It is read from the store, which is charged as one text, so that unknown names are not free. The charge is
        # refunded if the domain resolves. `default` always exists.
        limited = limited and ref != DomainRef(DEFAULT)
        if limited:
            await service.limits.admit(trace.grant, 1)
        calibration = await registry.resolve(ref)
        if limited:
            await service.limits.owe(trace.grant, -1)
    return calibration, service.encoder


async def permitted_domain(
    domain: Annotated[str, Path(pattern=f"^{DOMAIN_NAME}$", examples=["default"])], trace: TraceDep
) -> str:
    trace.grant.check_domain(domain)
    return domain


DomainName = Annotated[str, Depends(permitted_domain)]  # path parameter


JobId = Annotated[str, Path(examples=["2f1c0f5e8a9b4c7d9e0f1a2b3c4d5e6f"])]


async def permitted_job(job_id: JobId, service: ServiceDep, trace: TraceDep) -> Job:
    """The calibration that the path names. Raises NotFound, not Forbidden, if the key may not use its domain."""
    job = await service.job_reads(service.jobs.read, job_id)
    if job.request.match is not None or not trace.grant.may_use(job.request.domain):
        raise NotFound(f"no calibration job {job_id[:64]!r}")
    return job


JobDep = Annotated[Job, Depends(permitted_job)]
