"""The console and the API documentation: pages of fixed files that load nothing from other hosts."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from pydantic import BaseModel, Field

from isosim import __version__
from isosim.api.requests import documented
from isosim.api.state import ServiceDep
from isosim.errors import NotFound
from isosim.jobs.job import METHODS, PROMOTIONS
from isosim.jobs.requirements import FEWEST_LABELS, STEADY_FLOW, fewest_sentences
from isosim.scoring.calibration import DOMAIN_NAME

HTML, CSS, SCRIPT, SVG, PNG = "text/html", "text/css", "text/javascript", "image/svg+xml", "image/png"

# Content-Security-Policy: only files of this host; no inline scripts or styles, no framing.
STRICT = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; font-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@dataclass(frozen=True)
class Page:
    """The files of a web page and their media types. They need no key; the routes from which the page gets data do."""

    folder: Traversable
    types: Mapping[str, str]
    policy: str = STRICT

    def answer(self, request: Request, name: str) -> Response:
        """Answers with a file, or with 304 if the browser's copy is current.

        Raises:
            NotFound: the page has no such file.
        """
        if name not in self.types:
            raise NotFound(f"no route {request.method} {request.url.path}")
        return self.respond(request, self.folder.joinpath(name).read_bytes(), self.types[name])

    def respond(self, request: Request, content: bytes, kind: str) -> Response:
        """Answers with the content and the page's headers, or with 304 if the browser's copy is current."""
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        headers = {
            "etag": tag,
            "cache-control": "no-cache",  # browsers revalidate at each load, so that a new release shows at once
            "content-security-policy": self.policy,
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
        }
        known = {part.strip().removeprefix("W/") for part in request.headers.get("if-none-match", "").split(",")}
        if tag in known:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=kind)


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


console = APIRouter(prefix="/console", tags=["operations"])

MODULES = (
    "main", "api", "dom", "format", "alerts", "dialogs", "domains", "report", "pictures", "figure", "advisor",
    "distribution", "calibrate", "intake", "labels", "job", "jobs", "compare", "versions",
    "listing", "glossary", "thresholds", "label", "drawing",
)  # fmt: skip
CONSOLE = Page(
    files("isosim") / "console",
    {
        "index.html": HTML,
        "console.css": CSS,
        "files.css": CSS,
        "icon.svg": SVG,
        "vendor/chart.umd.min.js": SCRIPT,
        **{f"{name}.js": SCRIPT for name in MODULES},
    },
)


@console.head("", include_in_schema=False)
@console.get("", include_in_schema=False)
def console_page(request: Request) -> Response:
    return CONSOLE.answer(request, "index.html")


@console.head("/", include_in_schema=False)
@console.get("/", include_in_schema=False)
def console_with_slash() -> Response:
    """Redirects to the address without a slash, because the page's links are relative to it."""
    return RedirectResponse("../console", 308)


@console.head("/server.json", include_in_schema=False)
@console.get("/server.json", responses={503: documented()[503]})
def console_facts(service: ServiceDep) -> ConsoleFacts:
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
            texts=settings.max_texts,
            scoring_bytes=settings.max_body_bytes,
        ),
        fewest={method: fewest_sentences(method, encoder.spec.dim) for method in METHODS},
        fewest_labels=FEWEST_LABELS,
        steady_flow=STEADY_FLOW,
        promotions=list(PROMOTIONS),
        domain_pattern=DOMAIN_NAME,
    )


@console.head("/{name:path}", include_in_schema=False)
@console.get("/{name:path}", include_in_schema=False)
def console_file(request: Request, name: str) -> Response:
    return CONSOLE.answer(request, name)


docs = APIRouter(prefix="/docs", include_in_schema=False)

# Allows what Swagger UI needs: its style sheet holds icons as data: URLs, and its script sets style attributes.
DOCS_POLICY = STRICT.replace("img-src 'self'", "img-src 'self' data:").replace(
    "style-src 'self'", "style-src 'self' 'unsafe-inline'"
)
DOCS = Page(
    files("fastapi_offline") / "static",
    {"swagger-ui-bundle.js": SCRIPT, "swagger-ui.css": CSS},
    DOCS_POLICY,
)
DOCS_INDEX = b"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>isosim: all routes</title>
<link rel="icon" href="console/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
# validatorUrl null: otherwise Swagger UI sends the schema's address to a public validator.
DOCS_START = b"""SwaggerUIBundle({
  url: "openapi.json", dom_id: "#swagger-ui", deepLinking: true, validatorUrl: null, layout: "BaseLayout",
  presets: [SwaggerUIBundle.presets.apis, SwaggerUIBundle.SwaggerUIStandalonePreset],
});
"""


@docs.head("")
@docs.get("")
def docs_page(request: Request) -> Response:
    return DOCS.respond(request, DOCS_INDEX, HTML)


@docs.head("/start.js")
@docs.get("/start.js")
def docs_start(request: Request) -> Response:
    """The script that starts Swagger UI. It is a file, because the page's policy forbids inline scripts."""
    return DOCS.respond(request, DOCS_START, SCRIPT)


@docs.head("/{name}")
@docs.get("/{name}")
def docs_file(request: Request, name: str) -> Response:
    return DOCS.answer(request, name)
