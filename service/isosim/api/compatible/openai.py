"""OpenAI's embeddings and models routes. Errors under /v1 have OpenAI's form (service/isosim/api/errors.py)."""

import base64
from datetime import datetime
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

from isosim.api.compatible import models
from isosim.api.compatible.schemas import (
    EmbeddingsRequest,
    EmbeddingsResponse,
    ModelCard,
    ModelList,
    ModelPath,
)
from isosim.api.policy import needs
from isosim.api.requests import ScoringRoute, TraceDep, json_response, name_ignored, row_by_row
from isosim.api.scoring.request import check_dimensions, listed
from isosim.api.state import DOMAINS_A_TEXT, ServiceDep
from isosim.arrays import Vectors
from isosim.domains.champions import Champion
from isosim.domains.domain import Version
from isosim.scoring.calibration import DEFAULT

scoring = APIRouter(tags=["OpenAI"], route_class=ScoringRoute)
router = APIRouter(tags=["OpenAI"], prefix="/v1/models", dependencies=[needs("read", timed=True)])


@scoring.post("/v1/embeddings", response_model=EmbeddingsResponse)
async def embeddings(body: EmbeddingsRequest, service: ServiceDep, trace: TraceDep) -> Response:
    """Unit vectors of texts. The model `isosim/<domain>` returns calibrated vectors; the model `isosim/<domain>:raw`
    returns the vectors of the frozen encoder."""
    name_ignored(trace, body)
    request = await models.begin(service, trace, body.model)
    contents = listed(body.input, "input", service)
    check_dimensions(body.dimensions, request.space, request.encoder.artifact.spec.dim)
    await request.embed(contents, scored=False)
    rows = await request.vectors(dimensions=body.dimensions)
    answer = {"object": "list", "data": [], "model": body.model, "usage": request.usage}
    return await service.large_json.sized(len(rows), write, answer, rows, body)


def write(answer: dict[str, Any], rows: Vectors, body: EmbeddingsRequest) -> Response:
    """The response: `answer` with the vectors `rows`, in the `encoding_format` that the request `body` asks for."""
    written = as_base64(rows) if body.encoding_format == "base64" else row_by_row(rows)
    data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(written)]
    return json_response({**answer, "data": data})


def as_base64(vectors: Vectors) -> list[str]:
    """Base64 of each row's float32 values, little-endian."""
    return [base64.b64encode(vector).decode() for vector in vectors.astype("<f4")]


@router.get("", response_model=ModelList)
async def list_models(service: ServiceDep, trace: TraceDep) -> Response:
    """Lists the model isosim, and for each domain its calibrated and its raw model."""
    domains = await service.listings(trace.grant, models.served, service, trace.grant)
    await service.limits.owe(trace.grant, len(domains) // DOMAINS_A_TEXT)
    return await service.listings(trace.grant, written, domains)


def written(domains: list[models.Served]) -> Response:
    """The list of models as JSON; called in a thread, because a long list would block the event loop."""
    return json_response({"object": "list", "data": [card.model_dump() for one in domains for card in cards(one)]})


def cards(one: models.Served) -> list[ModelCard]:
    """The calibrated and the raw model of a domain."""
    made = 0 if one.champion is None else created(one.champion)
    names = ["isosim"] * (one.domain == DEFAULT) + [f"isosim/{one.domain}", f"isosim/{one.domain}:raw"]
    length = one.encoder.artifact.spec.max_length
    return [ModelCard(id=name, created=made, max_model_len=length) for name in names]


def created(version: Champion | Version) -> int:
    """Time at which a version was made, in seconds since 1970."""
    return int(datetime.fromisoformat(version.created).timestamp())


@router.get("/{model:path}")
async def get_model(model: ModelPath, service: ServiceDep, trace: TraceDep) -> ModelCard:
    """Shows one model; the error for an unknown name lists the models that the key may use."""
    request = await models.begin(service, trace, model)
    calibration = request.calibration
    record = await service.store(service.domains.read, calibration.domain)
    version = record.versions.get(calibration.version)
    length = request.encoder.artifact.spec.max_length
    return ModelCard(id=model, created=0 if version is None else created(version), max_model_len=length)
