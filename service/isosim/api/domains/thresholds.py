"""Similarity thresholds: computed for a target, or saved with a domain under a name."""

from dataclasses import fields
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response

from isosim.api.domains.schemas import REVISION, TargetRequest, ThresholdQuery
from isosim.api.policy import needs
from isosim.api.requests import DomainName, TraceDep, json_response, resolve
from isosim.api.state import ServiceDep
from isosim.scoring.advice import advise, decision_threshold
from isosim.scoring.calibration import DOMAIN_NAME
from isosim.scoring.distances import check_metric, distance_of, space_of
from isosim_client import SavedTarget, SavedThreshold, Threshold, Thresholds

router = APIRouter(prefix="/domains", tags=["domains"])

READ, ADMIN, ADMIN_JSON = [needs("read")], [needs("admin")], [needs("admin", json=True)]
ThresholdName = Annotated[str, Path(pattern=f"^{DOMAIN_NAME}$", examples=["duplicates"])]


@router.get("/{domain}/threshold", response_model=Threshold, dependencies=READ)
async def get_threshold(
    domain: Annotated[str, Path(description="name, name@3 or name@previous", examples=["default"])],
    service: ServiceDep,
    trace: TraceDep,
    asked: Annotated[ThresholdQuery, Query()],
) -> Response:
    """The similarity threshold for a false-match rate, a precision or a rate of false hits."""
    target, space, unit = asked.target, asked.space, asked.unit
    calibration, encoder = await resolve(service, trace, domain)
    artifact = encoder.artifact
    facts: dict[str, Any] = {}
    if unit != "similarity":
        check_metric(unit, artifact.id, unit=artifact.known_length)
        space = space_of(space, f"unit={unit}", calibration.domain, identity=calibration.transform is None)
    space = space or "calibrated"
    raw = space == "raw" and calibration.transform is not None
    advice = advise(calibration.model, calibration.domain, target, raw=raw)
    if unit != "similarity":
        ends = sorted(distance_of(end, unit) for end in advice.interval)
        facts = {"unit": unit, "distance": distance_of(advice.similarity, unit), "distance_interval": ends}
    facts |= {"domain": calibration.domain, "version": calibration.version, "space": space, **advice.as_facts()}
    return json_response({one.name: facts[one.name] for one in fields(Threshold) if one.name in facts})


@router.get("/{domain}/thresholds", response_model=Thresholds, dependencies=READ)
async def list_thresholds(domain: DomainName, service: ServiceDep, trace: TraceDep) -> Response:
    """Saved targets of a domain, with their thresholds for the version that the domain uses."""
    calibration, _ = await resolve(service, trace, domain)
    record = await service.store(service.domains.read, domain)
    decide = partial(decision_threshold, calibration)
    decisions = await service.scoring(
        lambda: [*map(decide, record.targets.values())]
    )  # in a thread: computing a threshold for the first time takes some ms
    saved = (
        SavedThreshold(**vars(decision) | {"name": name, "target": decision.target.facts})
        for name, decision in zip(record.targets, decisions, strict=True)
    )
    version, revision = calibration.version, record.revision
    return json_response(Thresholds(domain=domain, version=version, revision=revision, thresholds=tuple(saved)))


@router.put("/{domain}/thresholds/{name}", response_model=SavedTarget, dependencies=ADMIN_JSON)
async def put_threshold(
    domain: DomainName, name: ThresholdName, body: TargetRequest, service: ServiceDep, trace: TraceDep
) -> Response:
    """Saves a target under a name. A scoring request can send this name as `threshold`; the answer's `match` then says
    for each pair whether it matches. The target applies to all versions and encoders of the domain. This PUT request
    may be repeated."""
    target = body.target
    calibration, _ = await resolve(service, trace, domain)
    record = await service.store(service.domains.set_target, domain, name, target, revision=body.revision)
    await service.registry.follow(domain)
    notice, revision = decision_threshold(calibration, target).notice, record.revision
    return json_response(SavedTarget(domain=domain, name=name, target=target.facts, revision=revision, notice=notice))


@router.delete("/{domain}/thresholds/{name}", status_code=204, dependencies=ADMIN)
async def delete_threshold(
    domain: DomainName,
    name: ThresholdName,
    service: ServiceDep,
    revision: Annotated[int | None, Query(ge=0, description=REVISION)] = None,
) -> Response:
    """Deletes a saved target. With `revision`, the request can be retried safely."""
    await service.store(service.domains.set_target, domain, name, None, revision=revision)
    await service.registry.follow(domain)
    return Response(status_code=204)
