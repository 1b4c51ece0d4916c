"""Similarity thresholds: computed for a target, or saved with a domain under a name."""

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response

from isosim.api.domains.schemas import REVISION, SavedTarget, SavedThreshold, TargetRequest, Threshold, Thresholds
from isosim.api.policy import needs
from isosim.api.requests import DomainName, JsonBody, TraceDep, documented, resolve
from isosim.api.state import ServiceDep
from isosim.errors import Conflict
from isosim.jobs.store import JobStore
from isosim.scoring.advice import MOST_GALLERY, SMALLEST_FMR, Target, advise, decision_threshold
from isosim.scoring.calibration import DOMAIN_NAME
from isosim.scoring.distances import METRICS, Space, Unit, check_metric, distance_of, space_of
from isosim.scoring.false_hits import SMALLEST_RATE as SMALLEST_FALSE_HIT_RATE

router = APIRouter(prefix="/domains", tags=["domains"])

READ, ADMIN = [needs("read")], [needs("admin")]
ThresholdName = Annotated[str, Path(pattern=f"^{DOMAIN_NAME}$", examples=["duplicates"])]


@router.get(
    "/{domain}/threshold",
    dependencies=READ,
    response_model_exclude_unset=True,
    responses=documented(404, 409, 422),
)
async def get_threshold(
    domain: Annotated[str, Path(description="name, name@3 or name@previous", examples=["default"])],
    service: ServiceDep,
    trace: TraceDep,
    fmr: Annotated[
        float | None, Query(description=f"false-match rate among random pairs; at least {SMALLEST_FMR:g}, less than 1")
    ] = None,
    precision: Annotated[
        float | None,
        Query(description="share of true matches among pairs that reach the threshold; more than 0, less than 1"),
    ] = None,
    false_hit_rate: Annotated[
        float | None,
        Query(
            description="share of searches in which the best wrong match reaches the threshold; each search is among "
            f"`gallery` entries; at least {SMALLEST_FALSE_HIT_RATE:g}, less than 1",
        ),
    ] = None,
    gallery: Annotated[int | None, Query(ge=1, le=MOST_GALLERY, description="number of entries searched")] = None,
    space: Annotated[
        Space | None,
        Query(
            description="calibrated: a threshold for vectors of the model isosim/<domain>; raw: for the frozen "
            "encoder's vectors, isosim/<domain>:raw. Default: calibrated. Required with a `unit` other than "
            "`similarity`, unless the version uses the method identity, which keeps the encoder's vectors"
        ),
    ] = None,
    unit: Annotated[
        Unit,
        Query(
            description=f"also returns the threshold in this unit, for an index of the vectors of `space`: {METRICS}"
        ),
    ] = "similarity",
) -> Threshold:
    """The similarity threshold for a false-match rate, a precision or a rate of false hits."""
    target = Target(fmr, precision, false_hit_rate, gallery)
    calibration, encoder = await resolve(service, trace, domain)
    artifact = encoder.artifact
    if precision is not None and calibration.model.probability is None:
        await service.store(check_no_labels_wait, service.jobs, calibration.domain, artifact.digest)
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
    return Threshold(domain=calibration.domain, version=calibration.version, space=space, **advice.as_facts(), **facts)


def check_no_labels_wait(jobs: JobStore, domain: str, digest: str) -> None:
    """Raises Conflict, naming the job, if an unfinished job adds labels to `domain` for the encoder `digest`."""
    for job in jobs.unended():
        if job.request.labels and (job.request.domain, job.request.encoder) == (domain, digest):
            raise Conflict(
                f"domain {domain!r} has no labels yet; a job with {job.request.labels:,} labelled pairs is "
                f"{job.status}: GET /calibrate/{job.id}, and ask again when that job has succeeded"
            )


@router.get("/{domain}/thresholds", dependencies=READ, responses=documented(404, 409, 422))
async def list_thresholds(domain: DomainName, service: ServiceDep, trace: TraceDep) -> Thresholds:
    """Saved targets of a domain, with their thresholds for the version that the domain uses."""
    calibration, _ = await resolve(service, trace, domain)
    record = await service.store(service.domains.read, domain)
    decide = partial(decision_threshold, calibration)
    decisions = await service.scoring(
        lambda: [*map(decide, record.targets.values())]
    )  # in a thread: computing a threshold for the first time takes some ms
    return Thresholds(
        domain=domain,
        version=calibration.version,
        revision=record.revision,
        thresholds=[
            SavedThreshold(
                name=name,
                target=decision.target.facts,
                similarity=decision.similarity,
                interval=None if decision.interval is None else list(decision.interval),
                extrapolated=decision.extrapolated,
                notice=decision.notice,
            )
            for name, decision in zip(record.targets, decisions, strict=True)
        ],
    )


@router.put(
    "/{domain}/thresholds/{name}", dependencies=[*ADMIN, JsonBody], responses=documented(404, 409, 413, 415, 422)
)
async def put_threshold(
    domain: DomainName, name: ThresholdName, body: TargetRequest, service: ServiceDep, trace: TraceDep
) -> SavedTarget:
    """Saves a target under a name. A scoring request can send this name as `threshold`; the answer's `match` then says
    for each pair whether it matches. The target applies to all versions and encoders of the domain. This PUT request
    may be repeated."""
    target = body.target
    calibration, _ = await resolve(service, trace, domain)
    record = await service.store(service.domains.set_target, domain, name, target, revision=body.revision)
    await service.encoders.follow(domain)
    notice = decision_threshold(calibration, target).notice
    return SavedTarget(domain=domain, name=name, target=target.facts, revision=record.revision, notice=notice)


@router.delete("/{domain}/thresholds/{name}", status_code=204, dependencies=ADMIN, responses=documented(404, 409, 422))
async def delete_threshold(
    domain: DomainName,
    name: ThresholdName,
    service: ServiceDep,
    revision: Annotated[int | None, Query(ge=0, description=REVISION)] = None,
) -> Response:
    """Deletes a saved target. With `revision`, the request can be retried safely."""
    await service.store(service.domains.set_target, domain, name, None, revision=revision)
    await service.encoders.follow(domain)
    return Response(status_code=204)
