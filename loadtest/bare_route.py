"""A plain FastAPI route with the service's schema and headers. It computes nothing: an upper limit for HTTP."""

from typing import Annotated, Any

import orjson
from fastapi import Body, FastAPI
from fastapi.responses import Response
from pydantic import ConfigDict

from isosim import CONTRACT
from isosim.api.middleware import GUARD
from isosim.api.scoring.schemas import PairsRequest

DIGEST = "0" * 64
TIMES = ("x-tokenization-time", "x-queue-time", "x-inference-time", "x-total-time")
HEADERS = {
    "x-request-id": "0" * 32, "x-isosim-contract": CONTRACT, "x-isosim-domain": "default", "x-isosim-version": "1",
    "x-isosim-encoder": DIGEST, "x-compute-tokens": "0", **dict.fromkeys(TIMES, "0.000"),
    **{name.decode(): value.decode() for name, value in GUARD},
}  # fmt: skip


class Pairs(PairsRequest):
    """Validates without strict mode, because FastAPI has already parsed the JSON into lists instead of tuples."""

    model_config = ConfigDict(strict=False)


app = FastAPI()


@app.get("/livez")
async def livez() -> dict[str, str]:
    return {}


@app.post("/similarity")
async def similarity(body: Annotated[Pairs, Body()]) -> Response:
    count = len(body.pairs)
    scores = {"cosine": [0.123456] * count, "similarity": [0.123456] * count, "percentile": [0.123456789012] * count}
    answer: dict[str, Any] = {
        "domain": "default", "version": 1, "encoder": DIGEST, "method": "identity", **scores,
        "extrapolated": [False] * count, "probability": None, "flags": [{"a": [], "b": []}] * count, "notices": [],
    }  # fmt: skip
    return Response(orjson.dumps(answer), headers=HEADERS, media_type="application/json")
