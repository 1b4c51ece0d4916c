"""Cohere's embeddings routes. Its rerank routes: `rerank`."""

from typing import Any, Literal

import orjson
from fastapi import APIRouter
from fastapi.responses import Response

from isosim.api.compatible import models
from isosim.api.compatible.openai import as_base64
from isosim.api.compatible.schemas import EmbedByTypeResponse, EmbedFloatsResponse, EmbedTextsRequest
from isosim.api.requests import ScoringRoute, TraceDep, json_response, name_ignored, row_by_row
from isosim.api.scoring.request import check_dimensions, listed
from isosim.api.state import Service, ServiceDep
from isosim.api.trace import Trace
from isosim.arrays import Vectors

router = APIRouter(tags=["scoring"], route_class=ScoringRoute)

Kind = Literal["float", "base64"]


@router.post("/v2/embed", operation_id="embed_v2", response_model=EmbedByTypeResponse)
async def embed_v2(body: EmbedTextsRequest, service: ServiceDep, trace: TraceDep) -> Response:
    """Unit vectors of texts, by type. `model` is a name as in /v1/embeddings."""
    return await embed(body, service, trace, body.embedding_types or ["float"])


@router.post("/v1/embed", operation_id="embed_v1", response_model=EmbedFloatsResponse | EmbedByTypeResponse)
async def embed_v1(body: EmbedTextsRequest, service: ServiceDep, trace: TraceDep) -> Response:
    """Unit vectors of texts; by type only if the request names types."""
    return await embed(body, service, trace, body.embedding_types)


async def embed(body: EmbedTextsRequest, service: Service, trace: Trace, kinds: list[Kind] | None) -> Response:
    name_ignored(trace, body)
    request = await models.begin(service, trace, body.model)
    listed(body.texts, "texts", service)
    check_dimensions(body.output_dimension, request.space, request.encoder.artifact.spec.dim, "output_dimension")
    cut: dict[str, Any] = {"truncate": False} if body.truncate == "NONE" else {}
    await request.embed(
        body.texts, truncation_direction="left" if body.truncate == "START" else "right", scored=False, **cut
    )
    rows = await request.vectors(dimensions=body.output_dimension)
    form = "embeddings_floats" if kinds is None else "embeddings_by_type"
    tokens = request.usage["prompt_tokens"]
    meta = {"api_version": {"version": "2"}, "billed_units": {"input_tokens": tokens}}
    answer = {"response_type": form, "id": trace.request_id, "texts": body.texts, "meta": meta}
    return await service.large_json.sized(len(rows), write, answer, rows, kinds)


def write(answer: dict[str, Any], rows: Vectors, kinds: list[Kind] | None) -> Response:
    vectors: list[orjson.Fragment] | dict[Kind, Any]
    if kinds is None:
        vectors = row_by_row(rows)
    else:
        vectors = {kind: as_base64(rows) if kind == "base64" else row_by_row(rows) for kind in kinds}
    return json_response(answer | {"embeddings": vectors})
