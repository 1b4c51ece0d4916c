"""Export of domains to archives and import from them: GET /domains/{domain}/export, POST /domains/import."""

from contextlib import AsyncExitStack
from threading import Event
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response, StreamingResponse

from isosim.api.calibration.files import check_no_form, content_type, one_of_few, sent, store, temporary
from isosim.api.domains.schemas import ImportState
from isosim.api.policy import needs
from isosim.api.requests import TraceDep
from isosim.api.state import ServiceDep
from isosim.domains.archive import EncodersOfStore, import_domains, selected
from isosim.domains.archive import export_domains as write_archive
from isosim.encoders.store import EncoderStore
from isosim.scoring.calibration import DOMAIN_NAME, DomainRef
from isosim.threads import LONG

router = APIRouter(prefix="/domains", tags=["domains"])

ADMIN = [needs("admin")]
TAR = "application/x-tar"
ARCHIVE: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}


@router.get(
    "/{domain}/export", dependencies=ADMIN, response_class=Response, responses={200: {"content": {TAR: ARCHIVE}}}
)
async def export_domain(
    domain: Annotated[str, Path(description="name (all versions), name@3 or name@previous", examples=["default"])],
    service: ServiceDep,
    trace: TraceDep,
) -> Response:
    """A domain's versions and saved thresholds as one tar file, for a backup or another server."""
    ref = DomainRef.parse(domain)
    trace.grant.check_domain(ref.name)
    wanted = await service.store(selected, service.domains, domain, service.encoder.digest)
    async with AsyncExitStack() as stack:
        out = await stack.enter_async_context(temporary(service, trace.grant))
        with one_of_few(service, trace.grant):
            await service.store.within(LONG, write_archive, service.domains, [wanted], out)
        name = {"content-disposition": f'attachment; filename="{ref.name}.tar"'}
        return StreamingResponse(sent(stack.pop_all(), out), media_type=TAR, headers=name)


@router.post(
    "/import",
    dependencies=[needs("admin", body="file")],
    openapi_extra={"requestBody": {"required": True, "content": {TAR: ARCHIVE, "application/octet-stream": ARCHIVE}}},
)
async def import_archive(
    request: Request,
    service: ServiceDep,
    trace: TraceDep,
    rename: Annotated[
        str | None,
        Query(
            alias="as", pattern=f"^{DOMAIN_NAME}$", description="new name of the domain, if the archive holds only one"
        ),
    ] = None,
) -> ImportState:
    """Adds the versions of an archive to their domains. Nothing is overwritten, and no version becomes champion. The
    request may be repeated."""
    kind, _ = content_type(request)
    check_no_form(kind, "domains/import")
    encoders = EncodersOfStore(EncoderStore.at(service.settings.model_store, service.settings.seed_store))
    async with temporary(service, trace.grant) as file:
        await store(
            request,
            file,
            service.settings.max_calibration_bytes,
            "import a larger archive with the command isosim domains import",
        )
        file.seek(0)
        stopped = Event()
        try:
            with one_of_few(service, trace.grant):
                imported = await service.store.within(
                    LONG,
                    import_domains,
                    file,
                    service.domains,
                    encoders,
                    keep=service.settings.keep_versions,
                    rename=rename,
                    permit=trace.grant.check_domain,
                    proceed=lambda: not stopped.is_set(),
                )
        finally:
            stopped.set()  # the thread goes on if the request ends before it
    return ImportState.model_validate(imported, from_attributes=True)
