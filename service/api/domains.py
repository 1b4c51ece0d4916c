"""Domains, their versions, and who answers for them."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response

from service.api.requests import JsonBody, documented, needs
from service.api.schemas import ChampionRequest, Domains, DomainState, Threshold, VersionState, VersionSummary
from service.api.state import Service, ServiceDep
from service.core.calibration import DOMAIN_NAME, DomainRef
from service.core.errors import Conflict, NotFound
from service.core.registry import DEFAULT

router = APIRouter(prefix="/domains", tags=["domains"])

DomainName = Annotated[str, Path(pattern=f"^{DOMAIN_NAME}$")]
VersionNumber = Annotated[int, Path(ge=1, le=999_999_999)]
SMALLEST_FMR = 1e-7  # nothing that text could teach
READ, ADMIN = [needs("read")], [needs("admin")]


def summary(service: Service, domain: str, version: int) -> VersionSummary:
    manifest = service.domains.manifest(domain, version)
    return VersionSummary(
        version=version,
        method=manifest["method"],
        encoder=manifest["encoder"]["digest"],
        created=manifest["created"],
        sentences=manifest.get("sentences"),
        servable=manifest["encoder"]["digest"] == service.encoder.digest,
    )


def state(service: Service, domain: str) -> DomainState:
    versions = service.domains.versions(domain)
    if not versions and domain != DEFAULT:
        raise NotFound(f"no domain {domain!r}; GET /domains lists what there is")
    aliases = service.domains.aliases(domain, service.encoder.digest)
    champion = 0 if domain == DEFAULT and aliases.champion is None else aliases.champion
    return DomainState(
        domain=domain,
        champion=champion,
        previous=aliases.previous,
        versions=[summary(service, domain, version) for version in versions],
    )


@router.get("", dependencies=READ, responses=documented())
def list_domains(service: ServiceDep) -> Domains:
    """All domains, with their versions."""
    names = sorted({DEFAULT, *service.domains.domains()})
    return Domains(domains=[state(service, name) for name in names])


@router.get("/{domain}", dependencies=READ, responses=documented(404, 422))
def get_domain(domain: DomainName, service: ServiceDep) -> DomainState:
    """One domain, with its versions."""
    return state(service, domain)


@router.get("/{domain}/versions/{version}", dependencies=READ, responses=documented(404, 422))
def get_version(domain: DomainName, version: VersionNumber, service: ServiceDep) -> VersionState:
    """A version's provenance and measured report."""
    facts = summary(service, domain, version)
    files = service.domains.manifest(domain, version)["files"]
    report = service.domains.report(domain, version)
    return VersionState(domain=domain, files=files, report=report, **facts.model_dump())


@router.get("/{domain}/threshold", dependencies=READ, responses=documented(404, 409, 422))
async def get_threshold(
    domain: Annotated[str, Path(description="name, name@3 or name@previous")],
    fmr: Annotated[float, Query(ge=SMALLEST_FMR, lt=1, description="false-match rate among random pairs")],
    service: ServiceDep,
) -> Threshold:
    """Which similarity to ask for, so that random pairs of the domain match this often."""
    calibration = await service.registry.resolve(DomainRef.parse(domain))
    reference = calibration.reference
    if reference is None:
        raise Conflict(f"domain {domain!r} has no reference; give it text: POST /calibrate")
    return Threshold(
        domain=calibration.domain,
        version=calibration.version,
        target={"fmr": fmr},
        similarity=reference.threshold(fmr),
        interval=reference.interval(fmr),
        pairs=reference.pairs,
        extrapolated=fmr < 10 / reference.pairs,
    )


@router.put("/{domain}/champion", dependencies=[*ADMIN, JsonBody], responses=documented(404, 409, 413, 415, 422))
async def put_champion(domain: DomainName, body: ChampionRequest, service: ServiceDep) -> DomainState:
    """Makes a version the champion; it is loaded and verified first."""
    expected = await asyncio.to_thread(service.domains.aliases, domain, service.encoder.digest)
    await service.registry.resolve(DomainRef(domain, body.version))
    digest = service.encoder.digest
    await asyncio.to_thread(service.domains.promote, domain, digest, body.version, expected=expected)
    await service.registry.refresh()
    return await asyncio.to_thread(state, service, domain)


@router.post("/{domain}/rollback", dependencies=ADMIN, responses=documented(404, 409, 422))
async def rollback(domain: DomainName, service: ServiceDep) -> DomainState:
    """Swaps champion and previous."""
    await asyncio.to_thread(state, service, domain)
    digest = service.encoder.digest
    expected = await asyncio.to_thread(service.domains.aliases, domain, digest)
    if expected.previous is not None:
        await service.registry.resolve(DomainRef(domain, expected.previous))
    await asyncio.to_thread(service.domains.rollback, domain, digest, expected=expected)
    await service.registry.refresh()
    return await asyncio.to_thread(state, service, domain)


@router.delete("/{domain}/versions/{version}", status_code=204, dependencies=ADMIN, responses=documented(404, 409, 422))
async def delete_version(domain: DomainName, version: VersionNumber, service: ServiceDep) -> Response:
    """Deletes a version for good; its number is not given again."""
    await asyncio.to_thread(service.domains.delete, domain, version)
    service.registry.drop(domain, version)
    return Response(status_code=204)
