"""Routes that move a domain to the next encoder and back, and carry its thresholds over."""

from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from fastapi.responses import Response

from isosim.api.domains.schemas import (
    REVISION,
    EquatedThreshold,
    MigrationSide,
    MigrationState,
    MigrationThreshold,
    Switch,
)
from isosim.api.policy import needs
from isosim.api.requests import DomainName
from isosim.api.state import Service, ServiceDep
from isosim.domains.domain import Domain, Migration
from isosim.domains.encoders import LoadedEncoder
from isosim.errors import Conflict, IsosimError, NotFound
from isosim.scoring.advice import check_lost, lost_targets
from isosim.scoring.calibration import Calibration, DomainRef
from isosim.scoring.equating import equate, table

router = APIRouter(prefix="/domains/{domain}/migration", tags=["domains"])
READ, ADMIN, ADMIN_JSON = [needs("read")], [needs("admin")], [needs("admin", json=True)]


async def champion(service: Service, encoder: LoadedEncoder, domain: str) -> Calibration:
    """The domain's champion for `encoder`, which is the old or the new encoder of a move.

    Raises:
        Conflict: the domain has no champion for this encoder, or the champion has no reference distribution.
    """
    name = f"encoder {encoder.artifact.id} ({encoder.digest[:12]})"
    try:
        version = await service.encoders.registry.resolve(DomainRef(domain), encoder.digest)
    except (NotFound, Conflict) as error:
        raise Conflict(
            f"domain {domain!r} has no champion for {name}; calibrate it with the text that you "
            "used for the other encoder (POST /calibrate with encoder: next, or isosim calibrate --encoder)"
        ) from error
    if version.model.reference is None:
        raise Conflict(
            f"version {version.version} of {domain!r} for {name} has no reference distribution of random pairs, which "
            "is needed to compare encoders; calibrate the domain again"
        )
    return version


async def shown(service: Service, domain: str, record: Domain) -> MigrationState:
    """The state of a domain's move. While a version cannot be loaded, `thresholds` is null.

    Raises:
        Conflict: the domain has not moved, and this server has no next encoder.
    """
    migration = record.move
    if migration is None:
        named = [(one.digest, one.artifact.id) for one in (service.encoders.first, service.encoders.require_next())]
    else:
        named = [(migration.old, migration.old_id), (migration.new, migration.new_id)]
    sides = [MigrationSide(encoder=digest, id=name, version=record.served(digest).champion) for digest, name in named]
    thresholds = None
    try:
        pair = service.encoders.pair(record)
        one, other = [(await champion(service, side, domain)).model.reference for side in pair]
    except IsosimError:
        one = other = None
    if one is not None and other is not None:
        thresholds = [
            EquatedThreshold.model_validate(asdict(row) | {"interval": [*row.interval]})
            for row in await service.scoring(table, one, other)
        ]
    return MigrationState(
        domain=domain,
        moved=migration is not None,
        since=None if migration is None else migration.since,
        old=sides[0],
        new=sides[1],
        thresholds=thresholds,
    )


@router.post("", status_code=201, dependencies=ADMIN_JSON)
async def move(domain: DomainName, body: Switch, service: ServiceDep) -> MigrationState:
    """Moves a domain to this server's next encoder. From then on it answers all requests for the domain on all
    replicas, requests for vectors included. For each of the two encoders the domain needs a champion with a reference
    distribution. With `revision`, the request can be retried safely."""
    record = await service.store(service.domains.read, domain)
    before, old, new = record.move, service.encoders.first, service.encoders.require_next()
    if before is not None and (before.old, before.new) == (old.digest, new.digest):
        if record.last_change("moved", body.revision):
            return await shown(service, domain, record)  # a retry: an earlier request moved the domain
        raise Conflict(f"domain {domain!r} has moved already; DELETE takes it back")
    if before is not None and before.new != old.digest:
        raise Conflict(f"domain {domain!r} has moved to encoder {before.new_id}; take it back first (DELETE)")
    record.check_revision(domain, body.revision)
    from_version, to_version = [await champion(service, one, domain) for one in (old, new)]
    lost = await service.scoring(lost_targets, from_version.model, to_version.model, domain, record.targets)
    check_lost(lost, body.without, to_version.version)
    # Two moves at the same time differ in this time, so that the revision refuses the second.
    since = datetime.now(UTC).isoformat(timespec="microseconds")
    wanted = Migration(old.digest, old.artifact.id, new.digest, new.artifact.id, since)
    # First, so that nothing can fail after the change is made.
    answer = await shown(service, domain, replace(record, move=wanted))
    await service.store(service.domains.move, domain, wanted, revision=record.revision)
    await service.encoders.follow(domain)
    return answer


@router.get("", dependencies=READ)
async def get_migration(domain: DomainName, service: ServiceDep) -> MigrationState:
    """The two encoders of a domain's move, before and after it. With their champions and equivalent thresholds."""
    return await shown(service, domain, await service.store(service.domains.read, domain))


@router.delete("", status_code=204, dependencies=ADMIN)
async def move_back(
    domain: DomainName,
    service: ServiceDep,
    revision: Annotated[int | None, Query(ge=0, description=REVISION)] = None,
) -> Response:
    """The old encoder answers all requests again. Versions are kept. With `revision`, the request can be retried
    safely."""
    record = await service.store(service.domains.read, domain)
    if record.move is None and not record.last_change("moved_back", revision):
        raise NotFound(f"domain {domain!r} has not moved to another encoder")
    if record.move is not None:
        record.check_revision(domain, revision)
        await service.store(service.domains.move, domain, None, revision=record.revision)
        await service.encoders.follow(domain)
    return Response(status_code=204)


@router.get("/threshold", dependencies=READ)
async def get_equivalent(
    domain: DomainName,
    service: ServiceDep,
    similarity: Annotated[float, Query(ge=-1, le=1, description="a threshold of the old version")],
    space: Annotated[
        Literal["calibrated", "raw"], Query(description="raw: thresholds for the frozen encoders' cosines")
    ] = "calibrated",
) -> MigrationThreshold:
    """The new version's threshold with the same false-match rate as one of the old version. Works even before a
    migration begins."""
    old, new = service.encoders.pair(await service.store(service.domains.read, domain))
    versions = [await champion(service, one, domain) for one in (old, new)]
    models = [version.model for version in versions]
    references = [model.raw_reference if space == "raw" else model.reference for model in models]
    if references[0] is None or references[1] is None:
        raise Conflict(f"a version of {domain!r} has no reference for {space} similarities; calibrate the domain again")
    equated = await service.scoring(equate, references[0], references[1], similarity)
    sides = [
        MigrationSide(encoder=loaded_encoder.digest, id=loaded_encoder.artifact.id, version=version.version)
        for loaded_encoder, version in zip((old, new), versions, strict=True)
    ]
    return MigrationThreshold(
        domain=domain, old=sides[0], new=sides[1], space=space, **asdict(equated) | {"interval": [*equated.interval]}
    )
