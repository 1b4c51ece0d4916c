"""Routes that begin a domain's move to the next encoder, set the share of requests that the next encoder answers, and
finish or abandon the move."""

from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from fastapi.responses import Response

from isosim.api.domains.schemas import (
    FROM,
    REVISION,
    EquatedThreshold,
    MigrationChange,
    MigrationFinish,
    MigrationSide,
    MigrationStart,
    MigrationState,
    MigrationThreshold,
    ShadowState,
)
from isosim.api.requests import DomainName, JsonBody, documented, needs
from isosim.api.state import Service, ServiceDep
from isosim.domains.store import Start
from isosim.errors import Conflict, InvalidInput, IsosimError, NotFound
from isosim.migration.encoders import LoadedEncoder
from isosim.scoring.calibration import Calibration, DomainRef
from isosim.scoring.equating import equate, table
from isosim.scoring.moves import Migration

router = APIRouter(prefix="/domains/{domain}/migration", tags=["domains"])
READ, ADMIN = [needs("read")], [needs("admin")]
CHANGES = (404, 409, 422)
WITH_BODY = (404, 409, 413, 415, 422)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


async def of(service: Service, domain: str) -> Migration:
    """The domain's migration, read from the store. Raises NotFound if it has none."""
    await service.encoders.refresh_migrations()
    migration = service.encoders.migrations.get(domain)
    if migration is None:
        raise NotFound(f"domain {domain!r} has no migration; begin one with POST /domains/{domain}/migration")
    return migration


async def champion(loaded_encoder: LoadedEncoder, domain: str) -> Calibration:
    """The domain's champion for `loaded_encoder`, which is the old or the new encoder of a migration.

    Raises:
        Conflict: the domain has no champion for this encoder, or the champion has no reference distribution.
    """
    name = f"encoder {loaded_encoder.artifact.id} ({loaded_encoder.digest[:12]})"
    try:
        version = await loaded_encoder.registry.resolve(DomainRef(domain))
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


async def write(service: Service, domain: str, wanted: Migration | None, expected: Migration | None) -> None:
    """Stores the migration `wanted`; None deletes the migration. Other replicas see the change at their next poll.

    Raises:
        Conflict: the stored migration is not `expected`, because another request has changed it.
    """
    await service.store(service.encoders.store.set, domain, wanted, expected=expected)
    await service.encoders.follow(domain)


async def change(service: Service, domain: str, wanted: Migration, expected: Migration | None) -> MigrationState:
    """Stores a migration. The answer is built first, so that nothing can fail after the change is made."""
    answer = await shown(service, domain, wanted)
    await write(service, domain, wanted, expected)
    return answer


async def check_start(service: Service, domain: str, start: Start, migration: Migration | None) -> None:
    """Raises Conflict if the champion or the migration has changed since the client read them."""
    aliases = await service.store(service.domains.aliases, domain, service.encoders.home_encoder(domain).digest)
    revision = aliases.revision if migration is None else migration.revision
    start.check(domain, replace(aliases, revision=revision))


async def shown(service: Service, domain: str, migration: Migration) -> MigrationState:
    """A migration's state. While a version cannot be loaded, the fields `thresholds` and `seen` are null."""
    digests = (migration.old, migration.new)
    aliases = [await service.store(service.domains.aliases, domain, digest) for digest in digests]
    versions = [one.champion for one in aliases]
    thresholds = seen = None
    try:
        old, new = service.encoders.pair(domain)
        a, b = await champion(old, domain), await champion(new, domain)
    except IsosimError:
        pass
    else:
        if a.model.reference is not None and b.model.reference is not None:
            thresholds_by_rate = await service.scoring(table, a.model.reference, b.model.reference)
            thresholds = [
                EquatedThreshold.model_validate(asdict(one) | {"interval": [*one.interval]})
                for one in thresholds_by_rate
            ]
        compared = await service.scoring(service.shadow.measure, domain, (a.version, b.version))
        if compared is not None:
            sides = compared.changed_sides
            named = None if sides is None else {f"{rate:g}": share for rate, share in sides.items()}
            seen = ShadowState.model_validate(asdict(compared) | {"changed_sides": named})
    facts = {name: getattr(migration, name) for name in ("state", "share", "shadow", "revision", "started", "changed")}
    return MigrationState(
        domain=domain,
        old=MigrationSide(encoder=migration.old, id=migration.old_id, version=versions[0]),
        new=MigrationSide(encoder=migration.new, id=migration.new_id, version=versions[1]),
        thresholds=thresholds,
        seen=seen,
        **facts,
    )


@router.post("", status_code=201, dependencies=[*ADMIN, JsonBody], responses=documented(*WITH_BODY))
async def start_migration(domain: DomainName, body: MigrationStart, service: ServiceDep) -> MigrationState:
    """Begins a domain's move from this server's encoder to the next encoder. For each of these encoders, the domain
    needs a champion with a reference distribution."""
    await service.encoders.refresh_migrations()
    before = service.encoders.migrations.get(domain)
    old, new = service.encoders.first, service.encoders.require_next()
    began = now()
    wanted = Migration(
        old=old.digest,
        old_id=old.artifact.id,
        new=new.digest,
        new_id=new.artifact.id,
        share=body.share,
        shadow=body.shadow,
        started=began,
        changed=began,
    )
    if (
        before is not None
        and body.from_ is not None
        and before == replace(wanted, started=before.started, changed=before.changed)
    ):
        return await shown(service, domain, before)  # a retry: an earlier request began this migration
    if before is not None and not (before.finished and before.new == old.digest):
        raise Conflict(f"domain {domain!r} has a migration ({before.state}); finish or abandon (DELETE) it first")
    await check_start(service, domain, Start(body.from_), None)
    for loaded_encoder in (old, new):
        await champion(loaded_encoder, domain)
    return await change(service, domain, wanted, before)


@router.get("", dependencies=READ, responses=documented(404, 422))
async def get_migration(domain: DomainName, service: ServiceDep) -> MigrationState:
    """State of a domain's migration. `share` is the share of scoring requests that the new encoder answers; the old
    encoder answers the other requests. `shadow` is the share of these other requests that the new encoder also scores,
    for comparison. `thresholds` lists thresholds of the old and the new version. `seen` compares the scores that both
    versions gave to pairs in this process."""
    return await shown(service, domain, await of(service, domain))


@router.put("", dependencies=[*ADMIN, JsonBody], responses=documented(*WITH_BODY))
async def change_migration(domain: DomainName, body: MigrationChange, service: ServiceDep) -> MigrationState:
    """Changes the shares of a migration. `share` is the share of scoring requests that the new encoder answers; the
    old encoder answers the other requests. `shadow` is the share of these other requests that the new encoder also
    scores, for comparison. The body has one of them, or both."""
    before = await of(service, domain)
    if before.finished:
        raise Conflict(f"the migration of {domain!r} is finished; to undo it, send DELETE to the same path")
    given = body.model_dump(exclude_none=True, include={"share", "shadow"})
    if not given:
        raise InvalidInput("share or shadow: give at least one of them")
    if body.start != Start() and before == replace(before, **given):
        return await shown(service, domain, before)  # a retry: an earlier request made this change
    await check_start(service, domain, body.start, before)
    for loaded_encoder in service.encoders.pair(domain):
        await champion(loaded_encoder, domain)
    wanted = replace(before, **given, changed=now(), revision=before.revision + 1)
    return await change(service, domain, wanted, before)


@router.post("/finish", dependencies=ADMIN, responses=documented(*WITH_BODY))
async def finish_migration(
    domain: DomainName, service: ServiceDep, body: MigrationFinish | None = None
) -> MigrationState:
    """Lets the new encoder answer all requests for the domain, on all replicas. This includes requests for vectors."""
    start = Start() if body is None else body.start
    before = await of(service, domain)
    if before.finished:
        old = await service.store(service.domains.aliases, domain, before.old)
        if start.version is not None and start.version == old.champion:
            return await shown(service, domain, before)  # a retry: an earlier request finished this migration
        raise Conflict(f"the migration of {domain!r} is finished already")
    await check_start(service, domain, start, before)
    for loaded_encoder in service.encoders.pair(domain):
        await champion(loaded_encoder, domain)
    return await change(
        service, domain, replace(before, finished=True, changed=now(), revision=before.revision + 1), before
    )


@router.delete("", status_code=204, dependencies=ADMIN, responses=documented(*CHANGES))
async def abandon_migration(
    domain: DomainName,
    service: ServiceDep,
    from_: Annotated[int | None, Query(alias="from", ge=0, description=FROM)] = None,
    revision: Annotated[int | None, Query(ge=0, description=REVISION)] = None,
) -> Response:
    """Ends a migration, even a finished one: the old encoder answers all requests again. Versions are kept. With
    `from`, the request also succeeds if the migration no longer exists."""
    await service.encoders.refresh_migrations()
    if from_ is None or domain in service.encoders.migrations:
        before = await of(service, domain)
        await check_start(service, domain, Start(from_, revision), before)
        await write(service, domain, None, before)
    return Response(status_code=204)


@router.get("/threshold", dependencies=READ, responses=documented(404, 409, 422))
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
    await service.encoders.refresh_migrations()
    old, new = service.encoders.pair(domain)
    versions = [await champion(loaded_encoder, domain) for loaded_encoder in (old, new)]
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
