"""POST /embed: vectors, calibrated or raw, in text-embeddings-inference's shape."""

import asyncio
import time

from fastapi import APIRouter
from fastapi.responses import Response

from service.api.requests import (
    TraceDep,
    check_count,
    check_prompt,
    check_text,
    check_truncation,
    documented,
    json_response,
    name_ignored,
    side_of,
    texts_of,
)
from service.api.route import ScoringRoute
from service.api.schemas import EmbedRequest
from service.api.similarity import INLINE_ROWS, note
from service.api.state import ServiceDep
from service.core.calibration import DomainRef
from service.core.errors import InvalidInput
from service.core.similarity import normalized

router = APIRouter(tags=["scoring"], route_class=ScoringRoute)


@router.post("/embed", response_model=list[list[float]], responses=documented(400, 404, 409, 413, 415, 422, 424, 429))
async def embed(body: EmbedRequest, service: ServiceDep, trace: TraceDep) -> Response:
    """One vector a text, always as a list of lists."""
    settings, spec = service.settings, service.encoder.spec
    contents = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    check_count(len(contents), "`inputs`", settings.max_texts)
    for number, text in enumerate(contents):
        check_text(text, f"inputs.{number}" if body.inputs is contents else "inputs", settings.max_characters)
    check_prompt(body.prompt_name)
    if body.dimensions is not None and body.space == "calibrated":
        raise InvalidInput("dimensions: a calibrated vector cannot be cut; ask for it with space: raw")
    if body.dimensions is not None and body.dimensions > spec.dim:
        raise InvalidInput(f"dimensions: {body.dimensions} asked, the encoder has {spec.dim}")
    name_ignored(trace, body)
    calibration = await service.registry.resolve(DomainRef.parse(body.domain))
    texts = texts_of(contents, spec.prompt, side_of(body.truncation_direction))
    embedded = await service.embedder.embed(texts, trace.caller_left)
    check_truncation(body.truncate, embedded.texts, spec.max_length)
    started = time.perf_counter()
    vectors = embedded.vectors
    if body.space == "calibrated" and calibration.transform is not None:
        few = len(vectors) <= INLINE_ROWS
        vectors = calibration.latents(vectors) if few else await asyncio.to_thread(calibration.latents, vectors)
    vectors = vectors[:, : body.dimensions]
    if body.normalize:
        vectors = normalized(vectors)
    note(service, trace, calibration, embedded, time.perf_counter() - started)
    return json_response(vectors[embedded.rows])
