"""POST /rerank with the body of text-embeddings-inference or Cohere, and POST /score with that of vLLM."""

import time
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Body
from fastapi.responses import Response

from isosim.api.compatible import models
from isosim.api.compatible.schemas import Document, Rank, RerankRequest, RerankResponse, ScoreRequest, ScoreResponse
from isosim.api.parameters import fault
from isosim.api.requests import ScoringRoute, TraceDep, json_response, name_ignored
from isosim.api.scoring.request import MAX_TEXTS, ScoringRequest, check_text, listed
from isosim.api.state import Service, ServiceDep
from isosim.api.trace import Trace
from isosim.errors import InvalidInput
from isosim.scoring.advice import check_gallery, false_hits_of
from isosim.scoring.similarity import Scores

router = APIRouter(tags=["scoring"], route_class=ScoringRoute)

META = {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}  # of Cohere's answers


@router.post("/rerank", response_model=list[Rank] | RerankResponse)
@router.post("/v2/rerank", operation_id="rerank_v2", response_model=list[Rank] | RerankResponse)
@router.post("/v1/rerank", operation_id="rerank_v1", response_model=list[Rank] | RerankResponse)
async def rerank(body: Annotated[RerankRequest, Body()], service: ServiceDep, trace: TraceDep) -> Response:
    """Ranks texts by their match with the query, best first. Scores are percentiles among the domain's random pairs, or
    similarities if the domain's version has no random pairs.

    A text of which the encoder knows too few words comes last, with score 0.
    """
    texts = candidates(body, service)
    check_text(body.query, "query", service.settings.max_characters)
    name_ignored(trace, body)
    request = await begin(body, service, trace)
    await request.embed([body.query, *texts], truncation_direction=body.truncation_direction, truncate=body.truncate)
    result = await request.score(0, slice(1, None))
    relevance = relevance_of(result, raw=request.raw, similarity=body.raw_scores)
    limits = [limit for limit in (body.top_n, body.top_k) if limit]
    blind = np.zeros(len(texts), bool) if result.unreadable is None else result.unreadable
    relevance, similarity = np.where(blind, 0.0, relevance), np.where(blind, 0.0, result.similarity)
    order = np.lexsort((np.arange(len(texts)), -similarity, -relevance, blind))
    best = order[: min(limits, default=None)].tolist()
    shown: list[dict[str, Any]] = [{} for _ in texts]
    if body.gallery is not None:
        for one, rate in zip(shown, false_hit_rates(result, request, body.gallery), strict=True):
            one["false_hit_rate"] = rate
    if body.texts is not None:
        for one, text in zip(shown, texts, strict=True) if body.return_text else ():
            one["text"] = text
        return json_response([{"index": i, "score": float(relevance[i]), **shown[i]} for i in best])
    for one, text in zip(shown, texts, strict=True) if body.return_documents else ():
        one["document"] = {"text": text}
    results = [{"index": i, "relevance_score": float(relevance[i]), **shown[i]} for i in best]
    name = body.model or ("isosim" if body.domain is None else f"isosim/{body.domain}")
    head = {"id": trace.request_id, "model": name, "results": results}
    return json_response(head | {"usage": request.usage, "meta": META})


def candidates(body: RerankRequest, service: Service) -> list[str]:
    """Texts to rank. Raises InvalidInput or EmptyInput, naming the field."""
    if (body.texts is None) == (body.documents is None):
        raise InvalidInput("texts or documents: give one of them")
    limit = MAX_TEXTS - 1
    if body.texts is not None:
        return listed(body.texts, "texts", service, limit)
    documents = body.documents or []
    return listed([d.text if isinstance(d, Document) else d for d in documents], "documents", service, limit)


async def begin(body: RerankRequest, service: Service, trace: Trace) -> ScoringRequest:
    """Begins a request to the model in the body's field `model` (default: isosim), or to the calibrated model of the
    domain in `domain`."""
    if body.domain is None:
        return await models.begin(service, trace, body.model or "isosim")
    if body.model is not None:
        raise fault(InvalidInput, "domain", "and model: send only one of them")
    return await ScoringRequest.begin(service, trace, body.domain)


def relevance_of(result: Scores, *, raw: bool, similarity: bool) -> npt.NDArray[np.floating]:
    """The scores by which texts are ranked. `raw`: cosines. `similarity`: similarities in place of percentiles."""
    if raw:
        return result.cosine
    return result.similarity if similarity or result.percentile is None else result.percentile


def false_hit_rates(result: Scores, request: ScoringRequest, gallery: int) -> list[float | None]:
    """False-hit rate of each text in a search among `gallery` texts; None for an unreadable text.

    Raises:
        Conflict: the version has no counts of false hits.
        InvalidInput: `gallery` is too large for the version's counts.
    """
    calibration, raw = request.calibration, request.raw
    reference, table = false_hits_of(calibration.model, calibration.domain, raw=raw)
    check_gallery(table, calibration.domain, gallery)
    rates = reference.false_match_rate(result.cosine if raw else result.similarity)
    shares = table.share(rates, gallery).tolist()
    blind = [False] * len(shares) if result.unreadable is None else result.unreadable.tolist()
    return [None if skipped else share for share, skipped in zip(shares, blind, strict=True)]


@router.post("/score", response_model=ScoreResponse)
@router.post("/v1/score", operation_id="score_v1", response_model=ScoreResponse)
async def score(body: ScoreRequest, service: ServiceDep, trace: TraceDep) -> Response:
    """Scores pairs: one text against one or many, or two lists of equal length, entry by entry. A score is the pair's
    `similarity`."""
    settings = service.settings
    left = listed(body.text_1, "text_1", service, settings.max_pairs)
    right = listed(body.text_2, "text_2", service, settings.max_pairs)
    name_ignored(trace, body)
    if len(left) not in (1, len(right)):
        raise fault(
            InvalidInput,
            "text_1",
            f"has {len(left)} texts and text_2 {len(right)}; send one text in text_1, or as many as in text_2",
        )
    request = await models.begin(service, trace, body.model)
    await request.embed([*left, *right])
    these = 0 if len(left) == 1 else slice(0, len(left))
    result = await request.score(these, slice(len(left), None))
    values = result.cosine if request.raw else result.similarity
    answer = {
        "id": f"score-{trace.request_id}",
        "object": "list",
        "created": int(time.time()),
        "model": body.model,
        "data": [{"index": i, "object": "score", "score": float(value)} for i, value in enumerate(values)],
        "usage": request.usage,
    }
    return json_response(answer)
