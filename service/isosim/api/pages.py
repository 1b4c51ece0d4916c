"""The console and the API documentation: pages of fixed files that load nothing from other hosts."""

import os

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from pydantic import BaseModel, Field
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from isosim import __version__
from isosim.api.policy import OPEN, OPEN_PAGE
from isosim.api.requests import documented
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


class ConsoleEncoder(BaseModel):
    id: str
    digest: str
    dim: int


class ConsoleLimits(BaseModel):
    """Limits of requests."""

    characters: int = Field(description="maximum number of characters in one text")
    sentences: int = Field(description="maximum number of sentences in one calibration")
    bytes: int = Field(description="maximum number of bytes in the body of a calibration")
    pairs: int = Field(description="maximum number of pairs in one scoring request")
    texts: int = Field(description="maximum number of texts in one request for vectors")
    scoring_bytes: int = Field(description="maximum number of bytes in the body of a request for scores or vectors")


class ConsoleFacts(BaseModel):
    """Facts about this server that the web page needs."""

    version: str
    encoder: ConsoleEncoder
    keys: bool = Field(description="whether the other routes need a key")
    limits: ConsoleLimits
    fewest: dict[str, int] = Field(description="minimum number of distinct sentences by method")
    fewest_labels: int = Field(description="minimum number of distinct labelled pairs")
    steady_flow: int = Field(
        description="with fewer distinct sentences than this, the fit of a normalizing flow is unstable"
    )
    promotions: list[str]
    domain_pattern: str


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
@router.get("/console/server.json", responses={503: documented()[503]})
async def console_facts(service: ServiceDep) -> ConsoleFacts:
    """Facts that the console needs: limits, methods, and whether other routes need a key. This route needs no key."""
    settings, encoder = service.settings, service.encoders.first.artifact
    return ConsoleFacts(
        version=__version__,
        encoder=ConsoleEncoder(id=encoder.id, digest=encoder.digest, dim=encoder.spec.dim),
        keys=settings.api_keys_file is not None,
        limits=ConsoleLimits(
            characters=settings.max_characters,
            sentences=settings.max_calibration_sentences,
            bytes=settings.max_calibration_bytes,
            pairs=settings.max_pairs,
            texts=MAX_TEXTS,
            scoring_bytes=settings.max_body_bytes,
        ),
        fewest={method: fewest_sentences(method, encoder.spec.dim) for method in METHODS},
        fewest_labels=FEWEST_LABELS,
        steady_flow=STEADY_FLOW,
        promotions=list(PROMOTIONS),
        domain_pattern=DOMAIN_NAME,
    )
