"""Searches whose answers are known: which threshold a search or a semantic cache needs."""

from dataclasses import replace
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Request
from pydantic import Field, TypeAdapter

from isosim.api.bodies import FIRST_FAULT, Number, Own, body_of, example
from isosim.api.errors import in_words
from isosim.api.parameters import fault
from isosim.api.policy import needs
from isosim.api.requests import TraceDep, parsed
from isosim.api.scoring.request import ScoringRequest, check_count, check_texts
from isosim.api.state import ServiceDep
from isosim.errors import InvalidInput, IsosimError
from isosim.matching.check import NONE, Outcome, Searches, answer
from isosim.scoring.advice import Target, advise
from isosim.scoring.calibration import DEFAULT, Calibration
from isosim_client import Checked, SearchOutcome

router = APIRouter(prefix="/matches", tags=["matches"])

MOST = 10_000  # queries and entries of a check together; on two cores they take about half a minute
AT_ONCE = 256  # texts that wait for the encoder together, so that other requests come between
POINTS = 50  # thresholds in the answer
WIDTH = 0.01  # width of the interval of the wrong hits for which the answer says how many queries it needs


class KnownSearch(Own):
    text: str
    match: Number | None = Field(default=None, description="place of its match in `gallery`, from 0; null: it has none")


class CheckRequest(Own):
    """Searches whose matches are known, and what is searched."""

    model_config = example(
        {
            "queries": [{"text": "I lost my password", "match": 0}, {"text": "Do you sell shoes?", "match": None}],
            "gallery": ["How do I reset my password?", "Where is my invoice?"],
        }
    )

    queries: Annotated[list[KnownSearch], FIRST_FAULT, Field(max_length=MOST)]
    gallery: Annotated[list[str], FIRST_FAULT, Field(max_length=MOST)]
    domain: str = DEFAULT
    false_hit_rate: float = Field(default=0.01, gt=0, lt=1, description="share of the queries that may hit wrongly")
    confidence: float | None = Field(
        default=None, ge=0.5, le=0.99, description="0.95: the upper bound of that share stays below the rate"
    )


CHECK_REQUEST = TypeAdapter(CheckRequest)


@router.post(
    "/check",
    openapi_extra=body_of(CheckRequest),
    dependencies=[needs("read", texts=0, body="json", json=True, timed=True)],
)
async def check(request: Request, service: ServiceDep, trace: TraceDep) -> Checked:
    """Searches each query in the gallery, and says for each threshold how many hits are wrong and how many matches are
    found: what a semantic cache needs. Give queries that are known to have no match; 1,000 of them settle a rate of
    1 %."""
    body = await parsed(service, CHECK_REQUEST, await request.body())
    for name, texts in (("queries", [one.text for one in body.queries]), ("gallery", body.gallery)):
        check_count(len(texts), name, MOST - len(body.queries) if name == "gallery" else MOST)
        place = "queries.{}.text".format if name == "queries" else "gallery.{}".format
        check_texts(texts, place, service.settings.max_characters)
    for number, one in enumerate(body.queries):
        if one.match is not None and one.match >= len(body.gallery):
            raise fault(InvalidInput, f"queries.{number}.match", f": the gallery has no entry {one.match}")
    scoring = await ScoringRequest.begin(service, trace, body.domain)
    texts, parts = [*(one.text for one in body.queries), *body.gallery], []
    await scoring.charge(len(texts))  # at once: a rate that lets the request begin lets it end
    for start in range(0, len(texts), AT_ONCE):
        await scoring.embed(texts[start : start + AT_ONCE], scored=False, charged=True)
        parts.append(await scoring.vectors())
    unit = np.concatenate(parts)
    truth = np.array([NONE if one.match is None else one.match for one in body.queries], np.intp)
    count = len(body.queries)
    return await service.scoring(lambda: checked(body, scoring.calibration, answer(unit[:count], unit[count:], truth)))


def checked(body: CheckRequest, calibration: Calibration, searches: Searches) -> Checked:
    sure = replace(searches, confidence=body.confidence or searches.confidence)
    found = sure.threshold_for(body.false_hit_rate, bound=body.confidence is not None)
    promised, notices = None, []
    try:
        target = Target(false_hit_rate=body.false_hit_rate, gallery=len(body.gallery))
        promised = advise(calibration.model, calibration.domain, target).similarity
    except IsosimError as error:  # the domain has no reference, or too little text for so large a gallery
        notices.append(f"{calibration.domain} promises nothing for this rate and gallery: {in_words(error)}")
    return Checked(
        domain=calibration.domain,
        version=calibration.version,
        queries=len(body.queries),
        with_match=searches.matched,
        gallery=len(body.gallery),
        threshold=None if found is None else told(searches.at(found)),
        promised=None if promised is None else told(searches.at(promised)),
        queries_needed=searches.needed(body.false_hit_rate, WIDTH),
        notices=tuple(notices),
        table=tuple(map(told, searches.curve(POINTS))),
    )


def told(outcome: Outcome) -> SearchOutcome:
    return SearchOutcome(
        similarity=outcome.threshold,
        wrong=outcome.wrong.share or 0.0,
        wrong_interval=outcome.wrong.interval,
        found=outcome.found.share,
        found_interval=outcome.found.interval,
    )
