"""Routes for domains, their versions and their champions."""

import heapq
import itertools
from collections.abc import Collection
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Request
from fastapi.responses import Response
from pydantic import TypeAdapter

from isosim.access.grants import Grant
from isosim.api.bodies import body_of
from isosim.api.calibration.calibrate import (
    accept,
    check_room,
    check_takes,
    options_of,
    sent_away,
    spooling,
    take_json,
)
from isosim.api.calibration.files import content_type, read_body
from isosim.api.calibration.schemas import JobAccepted, LabelsOptions, LabelsRequest
from isosim.api.domains.schemas import REVISION, ChampionRequest, Domains, History, HistoryEntry, Switch
from isosim.api.errors import in_words
from isosim.api.policy import check_json, needs
from isosim.api.requests import DomainName, TraceDep, json_response, resolve
from isosim.api.state import DOMAINS_A_TEXT, Service, ServiceDep
from isosim.api.trace import Trace
from isosim.domains.domain import Domain, Version
from isosim.domains.history import Entry
from isosim.domains.removal import remove_domain
from isosim.errors import CorruptArtifact, NotFound, UnknownDomain
from isosim.jobs.intake import brought_by
from isosim.jobs.job import JobRequest
from isosim.jobs.sandbox import Reading
from isosim.jobs.store import id_of
from isosim.scoring.advice import check_lost, lost_targets, no_reference
from isosim.scoring.calibration import DEFAULT, Calibration, DomainRef
from isosim_client import Domain as DomainState
from isosim_client import Drift, VersionSummary
from isosim_client import Version as VersionState

router = APIRouter(prefix="/domains", tags=["domains"])

NDJSON = "application/x-ndjson"
LABELS_REQUEST = TypeAdapter(LabelsRequest)
VersionNumber = Annotated[int, Path(ge=1, le=999_999_999, examples=[1])]
PAGE = 1000  # maximum number of domains in an answer; 1,000 took 0.23 s and 280 kB
READ, ADMIN, ADMIN_JSON = [needs("read")], [needs("admin")], [needs("admin", json=True)]
LABELS = 'lines of {"a": "…", "b": "…", "label": 1}, with `weight` if any; vectors, if the encoder\'s users bring them'


def summary(service: Service, domain: str, version: Version) -> VersionSummary:
    damaged = (domain, version.number) in service.registry.damaged
    return VersionSummary(
        version=version.number,
        method=version.method,
        encoder=version.encoder,
        created=version.created,
        sentences=version.sentences,
        servable=version.encoder == service.encoder.digest and not damaged,
        damaged=damaged,
    )


def state(service: Service, domain: str) -> DomainState:
    """A domain's state. If its record is damaged, `unreadable` says so, and what the record holds is missing."""
    try:
        record = service.domains.read(domain)
    except CorruptArtifact as error:
        return DomainState(domain=domain, unreadable=(in_words(error),), drift=drift_of(service, domain))
    record.check(domain)
    return state_of(service, domain, record)


def state_of(service: Service, domain: str, record: Domain) -> DomainState:
    served = record.served(service.encoder.digest)
    builtin = 0 if domain == DEFAULT else None
    return DomainState(
        domain=domain,
        champion=builtin if served.champion is None else served.champion,
        previous=served.previous,
        revision=record.revision,
        thresholds={name: target.facts for name, target in record.targets.items()},
        versions=tuple(summary(service, domain, version) for _, version in sorted(record.versions.items())),
        drift=drift_of(service, domain),
    )


def drift_of(service: Service, domain: str) -> Drift | None:
    drift = service.drift.measure(domain)
    return None if drift is None else Drift(**vars(drift))


async def state_after(service: Service, domain: str, record: Domain) -> Response:
    """A domain's state after a change. The store is not read again: if this failed, the client would get an error
    although the change was made."""
    await service.registry.follow(domain)
    return json_response(state_of(service, domain, record))


def names(service: Service, grant: Grant, after: str, contains: str, most: int) -> list[str]:
    """Sorted names of domains that the key may use. Each name comes after `after` and contains `contains`; at most
    `most` are returned. `default` counts as a domain even if it has no versions."""
    stored = service.domains.names(after, contains, lambda name: name != DEFAULT and grant.may_use(name))
    key = service.domains.records.key  # names come in the order of their keys: `default-x` before `default`
    builtin = [DEFAULT] if key(after) < key(DEFAULT) and contains in DEFAULT and grant.may_use(DEFAULT) else []
    return list(itertools.islice(heapq.merge(stored, builtin, key=key), most))


def listed(service: Service, page: list[str], more: str | None) -> Response:
    """The answer as JSON; called in a thread, because encoding a thousand domains would block the event loop."""

    def read(name: str) -> DomainState | None:
        try:
            return state(service, name)
        except UnknownDomain:  # it has no version, or was deleted meanwhile
            return None

    states = service.domains.read_each(page, read)
    return json_response({"domains": [one for one in states if one is not None], "next": more})


@router.get("", response_model=Domains, dependencies=READ)
async def list_domains(
    service: ServiceDep,
    trace: TraceDep,
    limit: Annotated[int, Query(ge=1, le=PAGE, description="maximum number of domains in the answer")] = PAGE,
    after: Annotated[str, Query(max_length=64, description="`next` of the previous page")] = "",
    contains: Annotated[str, Query(max_length=64, description="only domains whose name contains this")] = "",
) -> Response:
    """Domains that the key may use, with their versions, in pages."""
    page = await service.listings(trace.grant, names, service, trace.grant, after, contains, limit + 1)
    more = page[limit - 1] if len(page) > limit else None
    await service.limits.owe(trace.grant, len(page) // DOMAINS_A_TEXT)
    return await service.listings(trace.grant, listed, service, page[:limit], more)


@router.get("/{domain}", response_model=DomainState, dependencies=READ)
async def get_domain(domain: DomainName, service: ServiceDep) -> Response:
    """One domain, with its versions."""
    return json_response(await service.store(state, service, domain))


@router.get("/{domain}/versions/{version}", dependencies=READ)
async def get_version(domain: DomainName, version: VersionNumber, service: ServiceDep) -> VersionState:
    """Where a version comes from, and the report of what was measured when it was made."""
    stored = (await service.store(service.domains.read, domain)).version(domain, version)
    facts = vars(summary(service, domain, stored))
    report = await service.store(service.domains.report, domain, version)
    return VersionState(domain=domain, files=stored.files, report=report, **facts)


@router.get("/{domain}/history", dependencies=ADMIN)
async def get_history(
    domain: DomainName,
    service: ServiceDep,
    limit: Annotated[int, Query(ge=1, le=PAGE, description="maximum number of changes in the answer")] = 100,
    before: Annotated[int | None, Query(ge=1, description="`next` of the previous page")] = None,
) -> History:
    """Who changed what about a domain and when, newest first; also of a deleted domain."""

    def read() -> list[Entry]:
        if not service.domains.was_there(domain):
            raise UnknownDomain(domain)
        return list(itertools.islice(service.domains.history(domain, before), limit + 1))

    page = await service.store(read)
    changes = [HistoryEntry.model_validate(entry.facts) for entry in page[:limit]]
    return History(domain=domain, changes=changes, next=page[limit - 1].number if len(page) > limit else None)


@router.post(
    "/{domain}/labels",
    status_code=202,
    response_model=JobAccepted,
    dependencies=[needs("calibrate", body="file")],
    openapi_extra=body_of(
        LabelsRequest,
        {NDJSON: {"type": "string", "description": LABELS}},
        LabelsOptions,
    ),
)
async def post_labels(
    domain: DomainName,
    request: Request,
    service: ServiceDep,
    trace: TraceDep,
    idempotency_key: Annotated[str | None, Header(max_length=256)] = None,
) -> Response:
    """Learns match probabilities from labelled pairs, and stores them in a new version. The new version is made from
    an existing version, and gives the same similarities and percentiles as the existing version. NDJSON has its options
    in the query; a JSON body has them in its fields."""
    await check_room(service, trace)
    if (kind := content_type(request)[0]) != NDJSON:
        check_json(kind)
    body = await options_of(request, service, LabelsOptions, LABELS_REQUEST)
    record = await service.store(service.domains.read, domain)
    job_id = id_of(trace.grant.id, idempotency_key or "", record.epoch)
    if idempotency_key is None or not await service.store(service.jobs.has, job_id):
        record.check_revision(domain, body.revision)
    base, encoder = await resolve(service, trace, DomainRef(domain, body.version or "champion"))
    if base.model.reference is None:
        raise no_reference(domain)
    artifact = encoder.artifact
    async with spooling() as spool:
        if isinstance(body, LabelsRequest):
            check_takes(artifact, "json")
            facts = await service.large_json(take_json, service, spool, body)
        else:
            reading = Reading("labels", kind="ndjson", labels=body.kind, brought=brought_by(artifact))
            facts = await read_body(request, service, reading, spool)
        record = await service.store(service.domains.read, domain)
        wanted = JobRequest(
            domain=domain,
            encoder=encoder.digest,
            encoder_id=encoder.artifact.id,
            method=base.method,
            promote=body.promote,
            seed=body.seed,
            labels=facts["labels"],
            kind=body.kind,
            base=base.version,
            champion=record.served(encoder.digest).champion,
        )
        notices = sent_away(service, artifact, 2 * facts["labels"])
        return await accept(service, trace, wanted, spool, notices, idempotency_key)


async def check_targets(
    service: Service, trace: Trace, record: Domain, wanted: Calibration, without: Collection[str]
) -> None:
    """Raises Conflict if the version `wanted` would make saved targets unreachable that `without` does not name."""
    domain, now = wanted.domain, record.served(wanted.encoder).champion
    if not record.targets or now is None:
        return
    try:
        champion = (await resolve(service, trace, DomainRef(domain, now)))[0]
    except (CorruptArtifact, NotFound):
        return  # a damaged or deleted champion reaches no target
    lost = await service.scoring(lost_targets, champion.model, wanted.model, domain, record.targets)
    check_lost(lost, without, wanted.version)


@router.put("/{domain}/champion", response_model=DomainState, dependencies=ADMIN_JSON)
async def put_champion(domain: DomainName, body: ChampionRequest, service: ServiceDep, trace: TraceDep) -> Response:
    """Loads and verifies a version, and then makes the version the champion for its encoder."""
    record = await service.store(service.domains.read, domain)
    wanted, _ = await resolve(service, trace, DomainRef(domain, body.version))
    digest = wanted.encoder
    if record.served(digest).champion != body.version:
        record.check_revision(domain, body.revision)
    await check_targets(service, trace, record, wanted, body.without)
    promoted = await service.store(service.domains.promote, domain, digest, body.version, revision=record.revision)
    return await state_after(service, domain, promoted)


@router.post("/{domain}/rollback", response_model=DomainState, dependencies=ADMIN)
async def rollback(domain: DomainName, service: ServiceDep, trace: TraceDep, body: Switch | None = None) -> Response:
    """Makes the previous version the champion; the former champion becomes the previous version. Changes only the
    champion for this server's encoder. The body may be left out. With `revision`, the request can be
    retried safely; without it, a second request undoes the first."""
    record = await service.store(service.domains.read, domain)
    record.check(domain)
    body = body or Switch(without=[])
    digest = service.encoder.digest
    if record.rolled_back(domain, digest, body.revision) is record:
        return await state_after(service, domain, record)  # a retry: an earlier request made this change
    record.check_revision(domain, body.revision)
    if (previous := record.served(digest).previous) is not None:
        wanted, _ = await resolve(service, trace, DomainRef(domain, previous))
        await check_targets(service, trace, record, wanted, body.without)
    swapped = await service.store(service.domains.rollback, domain, digest, revision=record.revision)
    return await state_after(service, domain, swapped)


@router.delete("/{domain}", status_code=204, dependencies=ADMIN)
async def delete_domain(domain: DomainName, service: ServiceDep) -> Response:
    """Deletes a domain with all its versions and cancels its calibrations; may be repeated.

    Version numbers are never reused, even if the domain is calibrated again. `default` cannot be deleted.
    """
    await service.store(remove_domain, service.domains, service.jobs, domain)
    await service.registry.follow(domain)
    return Response(status_code=204)


@router.delete("/{domain}/versions/{version}", status_code=204, dependencies=ADMIN)
async def delete_version(
    domain: DomainName,
    version: VersionNumber,
    service: ServiceDep,
    revision: Annotated[int | None, Query(ge=0, description=REVISION)] = None,
) -> Response:
    """Deletes a version for good; its number is never reused. With `revision`, the request can be retried safely."""
    await service.store(service.domains.delete, domain, version, revision=revision)
    await service.registry.follow(domain)
    return Response(status_code=204)
