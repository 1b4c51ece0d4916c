"""POST /similarity: pairs in, calibrated scores out; and text-embeddings-inference's body on the same route."""

import asyncio
import time
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Body
from fastapi.responses import Response

from service.api.middleware import Trace
from service.api.requests import (
    TraceDep,
    check_count,
    check_prompt,
    check_text,
    check_truncation,
    documented,
    json_response,
    name_ignored,
    name_source,
    side_of,
    texts_of,
)
from service.api.route import ScoringRoute
from service.api.schemas import PairsRequest, SimilarityRequest, SimilarityResponse, TeiSimilarityRequest
from service.api.state import Service, ServiceDep
from service.core.calibration import Calibration, DomainRef
from service.core.embedding import Embedded
from service.core.similarity import Scores, flags_of, notices_of, score
from service.core.texts import Text

router = APIRouter(tags=["scoring"], route_class=ScoringRoute)

INLINE_ROWS = 64  # so few texts and pairs are scored sooner than they are handed to a thread


@router.post(
    "/similarity",
    response_model=SimilarityResponse | list[float],
    responses=documented(400, 404, 409, 413, 415, 422, 424, 429),
)
async def similarity(body: Annotated[SimilarityRequest, Body()], service: ServiceDep, trace: TraceDep) -> Response:
    """Calibrated similarity of sentence pairs, with its percentile among the domain's random pairs."""
    if isinstance(body, TeiSimilarityRequest):
        return await tei_similarity(body, service, trace)
    return await pairs_similarity(body, service, trace)


async def pairs_similarity(body: PairsRequest, service: Service, trace: Trace) -> Response:
    settings = service.settings
    check_count(len(body.pairs), "pairs", settings.max_pairs)
    for number, pair in enumerate(body.pairs):
        for side, text in enumerate(pair):
            check_text(text, f"pairs.{number}.{side}", settings.max_characters)
    flat = [text for pair in body.pairs for text in pair]
    calibration = await service.registry.resolve(DomainRef.parse(body.domain))
    embedded = await service.embedder.embed(texts_of(flat, service.encoder.spec.prompt), trace.caller_left)
    scores = await apply(calibration, embedded, slice(0, None, 2), slice(1, None, 2), service, trace)
    answer: dict[str, Any] = {
        "domain": calibration.domain,
        "version": calibration.version,
        "encoder": calibration.encoder,
        "method": calibration.method,
        "cosine": scores.cosine,
        "similarity": scores.similarity,
        "percentile": scores.percentile,
        "probability": scores.probability,
        "flags": sides(flags_of(embedded, scores)),
        "notices": notices_of(calibration),
    }
    if body.detail:
        answer["detail"] = detail_of(embedded, scores)
    return json_response(answer)


def sides(per_text: Sequence[Any]) -> list[dict[str, Any]]:
    """What belongs to each text, in the order of the request, as one entry a pair."""
    return [{"a": a, "b": b} for a, b in zip(per_text[::2], per_text[1::2], strict=True)]


def detail_of(embedded: Embedded, scores: Scores) -> dict[str, Any]:
    """What the flags rest on. `out_of_domain`: the share of the domain's own sentences that are at least as odd."""
    judgement = scores.judgement
    odd = None if judgement is None else sides([float(p) for p in judgement.p_values[embedded.rows]])
    return {"out_of_domain": odd, "tokens": sides([embedded.texts[row].tokens for row in embedded.rows])}


async def tei_similarity(body: TeiSimilarityRequest, service: Service, trace: Trace) -> Response:
    settings, parameters = service.settings, body.parameters
    check_count(len(body.inputs.sentences), "`inputs.sentences`", settings.max_texts - 1)
    check_text(body.inputs.source_sentence, "inputs.source_sentence", settings.max_characters)
    for number, text in enumerate(body.inputs.sentences):
        check_text(text, f"inputs.sentences.{number}", settings.max_characters)
    check_prompt(parameters.prompt_name)
    name_ignored(trace, body)
    calibration = await service.registry.resolve(DomainRef.parse(parameters.domain))
    contents = [body.inputs.source_sentence, *body.inputs.sentences]
    texts: list[Text] = texts_of(contents, service.encoder.spec.prompt, side_of(parameters.truncation_direction))
    embedded = await service.embedder.embed(texts, trace.caller_left)
    check_truncation(parameters.truncate, embedded.texts, service.encoder.spec.max_length)
    scores = await apply(calibration, embedded, None, slice(1, None), service, trace)
    return json_response(scores.similarity)


async def apply(
    calibration: Calibration, embedded: Embedded, left: slice | None, right: slice, service: Service, trace: Trace
) -> Scores:
    """Scores rows against rows (left None: all against the first text), and notes where the time went."""
    started = time.perf_counter()
    b = embedded.rows[right]
    a = embedded.rows[left] if left is not None else np.full_like(b, embedded.rows[0])
    inputs = (calibration, embedded.texts, embedded.vectors, a, b)
    small = max(len(embedded.vectors), len(a)) <= INLINE_ROWS
    scores = score(*inputs) if small else await asyncio.to_thread(score, *inputs)
    champion = service.registry.champions.get(calibration.domain) is calibration
    service.drift.observe(calibration, scores, champion=champion)
    note(service, trace, calibration, embedded, time.perf_counter() - started)
    return scores


def note(service: Service, trace: Trace, calibration: Calibration, embedded: Embedded, spent: float) -> None:
    """Headers and metrics of a scoring request; `spent` seconds on calibration."""
    name_source(trace, calibration)
    trace.timings = embedded.timings
    service.metrics.truncated.inc(sum(text.truncated for text in embedded.texts))
    service.metrics.observe_timings(embedded.timings, spent)
