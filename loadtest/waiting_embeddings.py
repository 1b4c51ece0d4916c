"""A server of `POST /v1/embeddings` that waits instead of computing. It waits as long as `waiting_encoder.py`.

The same text always gets the same vector. isosim requires this of a remote encoder.
"""

import asyncio
import base64
import hashlib
from typing import Any

import numpy as np
import orjson
from fastapi import FastAPI, Request
from fastapi.responses import Response

from loadtest.waiting_encoder import RUN, TOKEN, VECTORS

DIM = 384
ENCODED = [
    base64.b64encode(row.tobytes()).decode()
    for row in np.random.default_rng(0).standard_normal((VECTORS, DIM)).astype(np.float32)
]
app = FastAPI()


@app.get("/livez")
async def livez() -> dict[str, str]:
    return {}


@app.post("/v1/embeddings")
async def embeddings(request: Request) -> Response:
    texts: list[str] = orjson.loads(await request.body())["input"]
    longest = max(len(text.encode()) for text in texts) / 4
    await asyncio.sleep(RUN + TOKEN * longest * len(texts))
    numbers = [int.from_bytes(hashlib.blake2b(text.encode(), digest_size=2).digest()) % VECTORS for text in texts]
    data: list[dict[str, Any]] = [{"index": i, "embedding": ENCODED[number]} for i, number in enumerate(numbers)]
    return Response(orjson.dumps({"data": data}), media_type="application/json")
