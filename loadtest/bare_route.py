"""The limit line of the HTTP side: the service's schemas and headers on a plain FastAPI route that computes nothing."""

from typing import Annotated, Any

import orjson
from fastapi import Body, FastAPI
from fastapi.responses import Response

from service.api.schemas import PairsRequest, SimilarityRequest

DIGEST = "0" * 64
HEADERS = {
    "x-request-id": "0" * 32,
    "x-isosim-domain": "default",
    "x-isosim-version": "1",
    "x-isosim-encoder": DIGEST,
    "x-tokenization-time": "0.000",
    "x-queue-time": "0.000",
    "x-inference-time": "0.000",
    "x-compute-tokens": "0",
    "x-total-time": "0.000",
}
app = FastAPI()


@app.get("/livez")
async def livez() -> dict[str, str]:
    return {}


@app.post("/similarity")
async def similarity(body: Annotated[SimilarityRequest, Body()]) -> Response:
    count = len(body.pairs) if isinstance(body, PairsRequest) else 1
    answer: dict[str, Any] = {
        "domain": "default",
        "version": 1,
        "encoder": DIGEST,
        "method": "identity",
        "cosine": [0.123456] * count,
        "similarity": [0.123456] * count,
        "percentile": [0.123456789012] * count,
        "probability": None,
        "flags": [{"a": [], "b": []}] * count,
        "notices": [],
    }
    return Response(orjson.dumps(answer), headers=HEADERS, media_type="application/json")
