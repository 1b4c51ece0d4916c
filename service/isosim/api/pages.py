"""The console and the API documentation: pages of fixed files that load nothing from other hosts."""

import os
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from isosim import __version__
from isosim.api.policy import OPEN, OPEN_PAGE
from isosim.api.scoring.request import MAX_TEXTS
from isosim.api.state import ServiceDep
from isosim.jobs.job import METHODS, PROMOTIONS
from isosim.jobs.requirements import FEWEST_LABELS, STEADY_FLOW, fewest_sentences
from isosim.scoring.calibration import DOMAIN_NAME

# Content-Security-Policy: only files of this host; no inline scripts or styles, no framing.
STRICT = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; font-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# Allows what Swagger UI needs: its style sheet holds icons as data: URLs, and its script sets style attributes.
SWAGGER = STRICT.replace("img-src 'self'", "img-src 'self' data:").replace(
    "style-src 'self'", "style-src 'self' 'unsafe-inline'"
)
LONGEST_PATH = 200  # characters


class Files(StaticFiles):
    """The files of a folder in a package. They need no key; the routes from which a page gets data do."""

    policy = OPEN_PAGE

    def __init__(self, package: str, folder: str, security: str) -> None:
        super().__init__(packages=[(package, folder)])
        self.headers = {
            "cache-control": "no-cache",  # browsers revalidate at each load, so that a new release shows at once
            "content-security-policy": security,
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
        }

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        """No file has a long path; for one of 60 kB, Starlette would ask the file system for seconds."""
        return super().lookup_path(path) if len(path) <= LONGEST_PATH else ("", None)

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(self.headers)
        return response


CONSOLE = Files("isosim", "console", STRICT)
DOCS = Files("isosim", "console", SWAGGER)  # docs.html
FILES = [Mount("/console", CONSOLE), Mount("/docs", Files("fastapi_offline", "static", SWAGGER))]


router = APIRouter(tags=["operations"], dependencies=[OPEN])


@router.head("/console", include_in_schema=False)
@router.get("/console", include_in_schema=False)
async def console_page(request: Request) -> Response:
    return await CONSOLE.get_response("index.html", request.scope)


@router.head("/console/", include_in_schema=False)
@router.get("/console/", include_in_schema=False)
async def console_with_slash() -> Response:
    """Redirects to the address without a slash, because the page's links are relative to it."""
    return RedirectResponse("../console", 308)


@router.head("/docs", include_in_schema=False)
@router.get("/docs", include_in_schema=False)
async def docs_page(request: Request) -> Response:
    return await DOCS.get_response("docs.html", request.scope)


@router.head("/console/server.json", include_in_schema=False)
@router.get("/console/server.json")
async def console_facts(service: ServiceDep) -> dict[str, Any]:
    """Facts about this server that the console needs. This route needs no key."""
    settings, encoder = service.settings, service.encoder.artifact
    return {
        "version": __version__,
        "encoder": {"id": encoder.id, "digest": encoder.digest, "dim": encoder.spec.dim},
        "keys": settings.api_keys_file is not None,  # whether the other routes need a key
        "limits": {
            "characters": settings.max_characters,  # in one text
            "sentences": settings.max_calibration_sentences,
            "bytes": settings.max_calibration_bytes,
            "pairs": settings.max_pairs,
            "texts": MAX_TEXTS,  # in one request for vectors
            "scoring_bytes": settings.max_body_bytes,
        },
        # Minimum number of distinct sentences by method; the fit of a flow to fewer than `steady_flow` is unstable.
        "fewest": {method: fewest_sentences(method, encoder.spec.dim) for method in METHODS},
        "fewest_labels": FEWEST_LABELS,
        "steady_flow": STEADY_FLOW,
        "promotions": list(PROMOTIONS),
        "domain_pattern": DOMAIN_NAME,
    }
