"""POST /embed: vectors, calibrated or raw, in text-embeddings-inference's shape."""

import asyncio

from fastapi import APIRouter
from fastapi.responses import Response

from service.api.access import calibration_of
from service.api.requests import TraceDep, documented, json_response, name_ignored
from service.api.route import ScoringRoute
from service.api.schemas import EmbedRequest
from service.api.scoring import INLINE_ROWS, check_dimensions, listed, named_prompt, side_of, vectors
from service.api.scoring import embed as embed_texts
from service.api.state import ServiceDep

router = APIRouter(tags=["scoring"], route_class=ScoringRoute)

ANSWERS = documented(400, 404, 409, 413, 415, 422, 424, 429)


@router.post("/embed", response_model=list[list[float]], responses=ANSWERS)
@router.post("/", response_model=list[list[float]], responses=ANSWERS, summary="Embed, for clients that know one URL")
@router.post("/invocations", response_model=list[list[float]], responses=ANSWERS, summary="Embed, for SageMaker")
async def embed(body: EmbedRequest, service: ServiceDep, trace: TraceDep) -> Response:
    """One vector a text, always as a list of lists."""
    contents = listed(body.inputs, "inputs", service)
    name_ignored(trace, body)
    calibration = await calibration_of(service, trace, body.domain)
    encoder = service.servings.of(calibration).encoder
    check_dimensions(body.dimensions, body.space, encoder.spec.dim)
    prompt = named_prompt(body.prompt_name, encoder)
    side = side_of(body.truncation_direction)
    embedded = await embed_texts(
        service, trace, calibration, contents, side=side, truncate=body.truncate, prompt=prompt
    )
    found = await vectors(
        service, trace, calibration, body.space, embedded, normalize=body.normalize, dimensions=body.dimensions
    )
    few = len(found) <= INLINE_ROWS
    return json_response(found) if few else await asyncio.to_thread(json_response, found)
