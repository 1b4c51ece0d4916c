"""POST /similarity (also with text-embeddings-inference's body), /percentile and /embed."""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Body
from fastapi.responses import Response

from isosim.api.requests import ScoringRoute, TraceDep, json_response, name_ignored, row_by_row
from isosim.api.scoring.request import (
    MAX_TEXTS,
    ScoringRequest,
    check_count,
    check_dimensions,
    check_text,
    check_texts,
    listed,
)
from isosim.api.scoring.schemas import (
    EmbedRequest,
    PairsRequest,
    PercentileRequest,
    PercentileResponse,
    SimilarityRequest,
    SimilarityResponse,
    TeiParameters,
    TeiSimilarityRequest,
    VectorsRequest,
)
from isosim.api.state import Service, ServiceDep
from isosim.api.trace import Trace
from isosim.arrays import Doubles
from isosim.encoders.brought import brought_vector
from isosim.encoders.embedding import Embeddings
from isosim.encoders.store import EncoderArtifact
from isosim.encoders.texts import PooledVector
from isosim.errors import InvalidInput
from isosim.scoring.advice import DecisionThreshold, decision_threshold, no_reference
from isosim.scoring.calibration import Calibration
from isosim.scoring.distances import check_metric, cosines_of, space_of
from isosim.scoring.pair_features import FLAGS, PairFeatures, pair_features
from isosim.scoring.similarity import Scores, flags_of
from isosim.wording import place

router = APIRouter(tags=["scoring"], route_class=ScoringRoute)


@router.post("/similarity", response_model=SimilarityResponse | list[float])
async def similarity(
    body: Annotated[SimilarityRequest, Body(title="SimilarityRequest")], service: ServiceDep, trace: TraceDep
) -> Response:
    """Calibrated similarity of sentence pairs, and its percentile among the domain's random pairs."""
    if isinstance(body, TeiSimilarityRequest):
        return await tei_similarity(body, service, trace)
    if isinstance(body, VectorsRequest):
        return await vectors_similarity(body, service, trace)
    return await pairs_similarity(body, service, trace)


async def pairs_similarity(body: PairsRequest, service: Service, trace: Trace) -> Response:
    settings = service.settings
    check_count(len(body.pairs), "pairs", settings.max_pairs)
    flat = [text for pair in body.pairs for text in pair]
    check_texts(flat, lambda row: f"pairs.{row // 2}.{row % 2}", settings.max_characters)
    request = await ScoringRequest.begin(service, trace, body.domain)
    decision = await saved_threshold(request, body.threshold)
    await request.embed(flat)
    wanted = body.detail or request.calibration.model.pair_map is not None
    features = await service.scoring(pair_features, body.pairs) if wanted else None
    return await answer_of(request, body, decision, features)


async def vectors_similarity(body: VectorsRequest, service: Service, trace: Trace) -> Response:
    """Scores pairs of vectors. Flags stay empty and the out-of-domain test is not run: both need the texts."""
    check_count(len(body.vectors), "vectors", service.settings.max_pairs)
    request = await ScoringRequest.begin(service, trace, body.domain)
    request.check_encoder(body.encoder)
    decision = await saved_threshold(request, body.threshold)
    await request.charge(2 * len(body.vectors))
    size, artifact = 2 * len(body.vectors), request.encoder.artifact
    request.embeddings = await service.scoring.sized(size, brought, body.vectors, artifact)
    return await answer_of(request, body, decision)


async def saved_threshold(request: ScoringRequest, name: str | None) -> DecisionThreshold | None:
    """The threshold for the target that is saved under `name`, for the request's version; None without a name.

    A target is a wanted rate, saved once for all versions of a domain. Raises NotFound if none is saved under `name`.
    """
    if name is None:
        return None
    target = await request.service.registry.target(request.calibration.domain, name)
    return decision_threshold(request.calibration, target)


def brought(pairs: Sequence[Sequence[Any]], artifact: EncoderArtifact) -> Embeddings:
    """Checks the posted vectors and returns them as Embeddings, the type that also holds an encoder's vectors.

    Raises InvalidInput for an invalid vector; the message names the vector's place in the body.
    """
    rows = [
        brought_vector(value, place(f"vectors.{row}.{side}"), artifact.spec.dim, unit=artifact.unit_vectors)
        for row, pair in enumerate(pairs)
        for side, value in enumerate(pair)
    ]
    texts = [PooledVector(row, 0, truncated=False) for row in rows]
    return Embeddings(texts, np.array(rows), np.arange(len(rows)), brought=True)


async def answer_of(
    request: ScoringRequest,
    body: PairsRequest | VectorsRequest,
    decision: DecisionThreshold | None,
    features: Doubles | None = None,
) -> Response:
    """The answer for pairs whose texts alternate in the request: a, b, a, b, …"""
    result = await request.score(slice(0, None, 2), slice(1, None, 2), features)
    calibration, embeddings = request.calibration, request.made
    left, right = embeddings.rows[::2], embeddings.rows[1::2]
    answer: dict[str, Any] = {
        "domain": calibration.domain,
        "version": calibration.version,
        "encoder": calibration.encoder,
        "method": calibration.method,
        "cosine": result.cosine,
        "similarity": result.similarity,
        "percentile": result.percentile,
        "extrapolated": result.extrapolated,
        "probability": result.probability,
        "flags": [{"a": a, "b": b} for a, b in zip(*flags_of(embeddings.texts, result, left, right), strict=True)],
        "notices": [*calibration.notices, *(calibration.notices_without_texts if embeddings.brought else ())],
    }
    if decision is not None:
        texts = features is not None
        answer |= match_of(answer["notices"], result, calibration, body.threshold, decision, texts=texts)
    if body.detail:
        answer["detail"] = detail_of(embeddings, result, calibration, features)
    return json_response(answer)


def match_of(
    known: list[str],
    scores: Scores,
    calibration: Calibration,
    name: str | None,
    decision: DecisionThreshold,
    *,
    texts: bool,
) -> dict[str, Any]:
    """The answer's fields `threshold`, `match` and `notices`, for the saved threshold `name`."""
    notices = [] if decision.reached else [f"threshold_unreachable:{name}: {decision.notice}"]
    return {
        "notices": [*known, *notices],
        "threshold": {
            "name": name,
            "target": decision.target.facts,
            "similarity": decision.similarity,
            "probability": decision.probability if texts else None,
            "version": calibration.version,
        },
        "match": decision.matches(scores, texts=texts),
    }


def sides(per_text: Sequence[Any]) -> list[dict[str, Any]]:
    """Groups values of texts, in the order a, b, a, b, …, by pair: one object with `a` and `b` for each pair."""
    return [{"a": a, "b": b} for a, b in zip(per_text[::2], per_text[1::2], strict=True)]


def detail_of(
    embeddings: Embeddings, scores: Scores, calibration: Calibration, features: Doubles | None
) -> dict[str, Any]:
    """The answer's field `detail`: figures that explain flags and percentiles."""
    odd = None if scores.oddness is None else sides([scores.oddness[row] for row in embeddings.rows])
    scale, learnt = calibration.model.reference, calibration.model.pair_map
    words = None
    if learnt is not None and features is not None:
        words = [dict(zip(PairFeatures._fields, row, strict=True)) for row in learnt.moved(features).tolist()]
    return {
        "out_of_domain": odd,
        "tokens": None if embeddings.brought else sides([embeddings.texts[row].tokens for row in embeddings.rows]),
        "pairs": None if scale is None else scale.pairs,
        **dict(zip(FLAGS, (None, None) if features is None else features[:, -2:].T.astype(bool).tolist(), strict=True)),
        "words": words,
    }


async def tei_similarity(body: TeiSimilarityRequest, service: Service, trace: Trace) -> Response:
    settings, parameters = service.settings, body.parameters or TeiParameters()
    sentences = body.inputs.sentences
    listed(sentences, "inputs.sentences", service, MAX_TEXTS - 1)
    check_text(body.inputs.source_sentence, "inputs.source_sentence", settings.max_characters)
    name_ignored(trace, body)
    request = await ScoringRequest.begin(service, trace, parameters.domain)
    await request.embed(
        [body.inputs.source_sentence, *sentences],
        truncation_direction=parameters.truncation_direction,
        truncate=parameters.truncate,
        prompt_name=parameters.prompt_name,
    )
    return json_response((await request.score(0, slice(1, None))).similarity)


@router.post("/percentile", response_model=PercentileResponse)
async def percentile(body: PercentileRequest, service: ServiceDep, trace: TraceDep) -> Response:
    """Percentiles of cosines, or of a vector database's distances, that were computed elsewhere. Percentiles are among
    the domain's random pairs."""
    values, name = (body.cosines, "cosines") if body.distances is None else (body.distances, "distances")
    if values is None or (body.cosines is None) == (body.distances is None):
        raise InvalidInput("cosines or distances: give one of them")
    if (body.metric is None) != (body.distances is None):
        both = "distances: also send `metric`, the metric of the distances"
        raise InvalidInput(both if body.metric is None else "metric: belongs to distances; cosines need none")
    check_count(len(values), name, MOST_SCORES)
    request = await ScoringRequest.begin(service, trace, body.domain)
    request.check_encoder(body.encoder)
    artifact, calibration = request.encoder.artifact, request.calibration
    if body.metric is not None:
        check_metric(body.metric, artifact.id, unit=artifact.known_length)
    space = space_of(body.space, name, calibration.domain, identity=calibration.transform is None)
    await request.charge(1)
    cosines = cosines_of(np.array(values, np.float64), body.metric, name)
    placed = await service.scoring.sized(len(values), calibration.place, cosines, raw=space == "raw")
    if placed is None:
        raise no_reference(calibration.domain)
    rates, extrapolated, probability = placed
    return json_response(
        {
            "domain": calibration.domain,
            "version": calibration.version,
            "encoder": calibration.encoder,
            "method": calibration.method,
            "space": space,
            "cosine": cosines,
            "percentile": 1.0 - rates,
            "false_match_rate": rates,
            "extrapolated": extrapolated,
            "probability": probability,
            "notices": calibration.notices_of_places(raw=space == "raw"),
        }
    )


MOST_SCORES = 10_000  # maximum number of scores per request to /percentile


@router.post("/embed", response_model=list[list[float]])
@router.post("/", operation_id="embed_at_root", response_model=list[list[float]])
@router.post("/invocations", operation_id="embed_sagemaker", response_model=list[list[float]])
async def embed(body: EmbedRequest, service: ServiceDep, trace: TraceDep) -> Response:
    """One vector for each text, always as a list of lists. `/` serves clients that call only the base URL, and
    `/invocations` serves SageMaker."""
    contents = listed(body.inputs, "inputs", service)
    name_ignored(trace, body)
    request = await ScoringRequest.begin(service, trace, body.domain, body.space)
    check_dimensions(body.dimensions, body.space, request.encoder.artifact.spec.dim)
    await request.embed(
        contents,
        truncation_direction=body.truncation_direction,
        truncate=body.truncate,
        prompt_name=body.prompt_name,
        scored=False,
    )
    rows = await request.vectors(normalize=body.normalize, dimensions=body.dimensions)
    return await service.large_json.sized(len(rows), lambda: json_response(row_by_row(rows)))
